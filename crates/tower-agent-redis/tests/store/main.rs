//! The store on servers of the tests' own, in real time. Without `redis-server` the tests say so,
//! and do nothing.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod adjustments;
mod candidates;
mod expiry;
mod freezes;
mod loss;
mod model;
mod owners;
mod periods;
mod processes;
mod proxy;
mod questions;
mod replica;
mod replicas;
mod reports;
mod returns;
mod sentinels;
mod server;
#[path = "../../../../tests/support/mod.rs"]
mod support;
mod tokens;
