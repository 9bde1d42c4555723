//! `HyperService` on real sockets, in front of upstreams that each test scripts.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod answers;
mod flow_control;
mod http2;
mod proxy;
mod reused;
mod silence;
mod streams;
mod upgrades;
mod upstream;
