//! Streams through a full stack: what the caller gets depends on the upstream's bytes alone, and an
//! answer is whole or cut by what it says.
//!
//! `STREAMS_CASES=<number>` sets how many streams the properties make.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod answers;
mod call;
mod cuts;
mod forms;

mod reference;
#[path = "../support/mod.rs"]
mod support;
