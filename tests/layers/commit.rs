//! What both layers hold of an answer until its commit, and what they do not.

mod bounds;
mod failures;
mod streams;
mod whole;
