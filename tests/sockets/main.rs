//! Real sockets: HTTP/1.1 and HTTP/2, axum, hyper and reqwest, and clients
//! that leave at every point of a call.

#![cfg(feature = "axum")]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod axum_adapter;
mod delivered;
mod disconnects;
mod drops;
mod frames;
mod framing;
mod half_closed;
mod local_model;
mod looping_agent;
#[path = "../support/net/mod.rs"]
mod net;
mod readers;
mod reqwest_adapter;
mod restarts;
mod servers;
mod sessions;
mod upstream_process;
