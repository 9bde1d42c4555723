//! The gateway as a process, as its users have it.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "these are tests"
)]

mod agents;
mod answers;
mod auth;
mod base_urls;
#[cfg(target_os = "linux")]
mod buffered_uploads;
mod caller_deadline;
mod clocks;
mod command_line;
mod completed;
mod configuration;
mod connections;
mod control;
mod cors;
mod disconnects;
mod drains;
mod early_head;
mod events;
mod fallback;
mod forwarding;
mod framing;
mod health;
mod images;
mod known_agents;
mod listening;
mod log;
mod loops;
mod metrics;
#[path = "../../../../tests/support/net/mod.rs"]
mod net;
mod operator;
mod page;
mod progress;
mod prompts;
mod public_reports;
mod random_load;
mod reload;
mod replicas;
mod replicas_routes;
mod service_manager;
mod shutdown;
mod stop;
mod sub_agents;
mod support;
mod threads;
mod traces;
mod turns;
mod unknown_routes;
mod uploads;
mod upstream_connections;
mod upstream_proxy;
mod waits;
mod watchdog;
mod webhooks;
mod websocket;
