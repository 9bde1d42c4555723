//! The gateway example as a process, as its users have it.

#![cfg(all(feature = "axum", feature = "reqwest"))]
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod answers;
mod caller_deadline;
mod command_line;
mod configuration;
mod control;
mod disconnects;
mod drains;
mod fallback;
mod forwarding;
mod shutdown;
mod support;
mod uploads;
