//! Real sockets: upstreams that play a script, clients, and servers in this process
//! and in one of their own.

#![allow(
    dead_code,
    unused_imports,
    reason = "each target uses a part of the support"
)]

mod bare;
mod client;
mod dialect;
mod figures;
mod gateway;
mod http2_upstream;
mod model_upstream;
mod play;
mod proxy;
mod runtime;
mod upstream;
mod upstream_process;
mod verbatim;
mod wire;

pub(crate) use self::{
    bare::Bare,
    client::{Client, Raw, Version, get, post, request_of},
    dialect::{DIALECTS, Dialect, client, error_event},
    figures::Figures,
    gateway::{Config, Gateway, candidate, fails},
    model_upstream::{ClosedPort, ModelUpstream, chat},
    play::{STREAM, WHOLE, refusal},
    proxy::{Back, Front, Proxy, Setup, boxed},
    runtime::{eventually, run, run_alone, until, within},
    upstream::{Calls, Play, Upstream},
    upstream_process::Process,
    verbatim::Verbatim,
    wire::{DONE, SSE_HEAD, TOKEN, chunk},
};

/// Holds that none of the secrets stands in the text.
#[track_caller]
pub(crate) fn assert_no_secrets(text: &str, secrets: &[&str]) {
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} is in {text}");
    }
}
