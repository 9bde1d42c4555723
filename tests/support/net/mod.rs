//! Real sockets: upstreams that play a script, clients, and servers in this process or in
//! one of their own.
//!
//! A test asks a server in front of an [`Upstream`], and holds what the caller and the
//! upstream saw. The server is a stack of layers in this process ([`Setup`] serves a
//! [`Proxy`]), a router of the test's own ([`serve`]), or a [`Process`]. All of it runs
//! inside of [`run`], and waits by [`within`], [`eventually`] or [`until`], never by a sleep.
//!
//! The gateway's package mounts this module too, and adds what starts the gateway.
//!
//! A new test of a stack whose client leaves:
//!
//! ```ignore
//! let upstream = Upstream::http1(Play::Tokens(1)).await;
//! let gateway = Setup::new(Front::Axum, Back::Reqwest).serve(upstream.addr).await;
//! let mut client = Raw::request(gateway.addr, &post("one")).await;
//! client.until(|text| text.contains(TOKEN)).await;
//! drop(client);
//! upstream.released("one").await;
//! assert_eq!(gateway.reason("one").await, TerminalReason::ClientDisconnect);
//! ```

#![allow(
    dead_code,
    unused_imports,
    reason = "each target uses a part of the support"
)]

mod answer;
mod client;
mod closed_port;
mod dialect;
mod process;
mod proxy;
mod raw;
mod runtime;
mod upstream;
mod wire;

pub(crate) use self::{
    answer::{Answer, Ask, Streaming},
    client::{Client, Version, client, request_of},
    closed_port::ClosedPort,
    dialect::{CHAT, DIALECTS, Dialect, asks, chat, error_event},
    process::Process,
    proxy::{Back, Front, Proxy, Setup, boxed, serve},
    raw::{Raw, get, post},
    runtime::{eventually, run, run_alone, until, within},
    upstream::{Call, Play, STREAM, Step, Upstream, WHOLE, refusal},
    wire::{DONE, SSE_HEAD, TOKEN, chunk},
};

/// Holds that none of the secrets stands in the text.
#[track_caller]
pub(crate) fn assert_no_secrets(text: &str, secrets: &[&str]) {
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}
