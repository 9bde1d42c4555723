//! Tests of whole stacks that need to see inside of the crate: they act between the
//! storing of an end and its spreading.

#![allow(clippy::disallowed_methods, reason = "the tests spawn readers")]

mod ended_meanwhile;
#[path = "../../tests/stacks/mod.rs"]
mod stacks;
#[path = "../../tests/support/mod.rs"]
mod support;
