//! Real sockets: upstreams that play a script, clients, and servers in this process
//! and in one of their own.

#![allow(
    dead_code,
    unused_imports,
    reason = "each target uses a part of the support"
)]

mod bare;
mod client;
mod closed_port;
mod dialect;
mod figures;
mod gateway;
mod proxy;
mod runtime;
mod upstream;
mod upstream_process;
mod wire;

pub(crate) use self::{
    bare::Bare,
    client::{Client, Raw, Version, get, post, request_of},
    closed_port::ClosedPort,
    dialect::{CHAT, DIALECTS, Dialect, asks, chat, client, error_event},
    figures::Figures,
    gateway::{Config, Gateway, candidate, fails},
    proxy::{Back, Front, Proxy, Setup, boxed},
    runtime::{eventually, run, run_alone, until, within},
    upstream::{Call, Play, STREAM, Step, Upstream, WHOLE, refusal},
    upstream_process::Process,
    wire::{DONE, SSE_HEAD, TOKEN, chunk},
};

/// Holds that none of the secrets stands in the text.
#[track_caller]
pub(crate) fn assert_no_secrets(text: &str, secrets: &[&str]) {
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}
