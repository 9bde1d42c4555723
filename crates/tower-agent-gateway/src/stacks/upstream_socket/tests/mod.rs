//! The service below a layer of candidates, and whole gateways, in front of upstreams that a test
//! scripts in the messages of their sockets.

#![allow(
    clippy::disallowed_methods,
    reason = "an upstream of a test spawns tasks"
)]

mod failures;
mod gateway;
mod support;
mod turns;
