//! What both layers hold of an answer until its commit, and what they do not.

mod bounds;
mod dialects;
mod failures;
mod stops;
mod streams;
mod whole;
