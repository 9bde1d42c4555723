//! Real sockets: upstreams that play a script, clients, and servers in this process
//! and in one of their own.

#![allow(
    dead_code,
    unused_imports,
    reason = "each target uses a part of the support"
)]

mod answer;
mod client;
mod closed_port;
mod config;
mod dialect;
mod gateway;
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
    config::Config,
    dialect::{CHAT, DIALECTS, Dialect, asks, chat, error_event},
    gateway::Gateway,
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
