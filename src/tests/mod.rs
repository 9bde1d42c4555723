//! Tests of whole stacks that need to see inside of the crate: they act between the
//! storing of an end and its spreading.

mod ended_meanwhile;
