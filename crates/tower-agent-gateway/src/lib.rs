//! A gateway for OpenAI- and Anthropic-compatible clients, made of [`tower_agent`]'s
//! public API alone.
//!
//! [`app`] makes the gateway's router for a [`Config`] and [`Runs`]. [`serve`] serves the router:
//! it limits each connection, and at a signal ends the runs, with `control.drain` after a time in
//! which they may finish. Without a configuration the program starts a simulated upstream
//! ([`demo`]), so that any SDK can call the gateway without a network or a key.
//!
//! # The way of a request
//!
//! In > check > route > stack > out. `http` accepts the connection, and checks the request's host,
//! origin and credential, and what it uploads. `routes` chooses by its path what answers. A request
//! for a model goes on to `stacks`, where the layers of [`tower_agent`] supervise the run and call
//! the upstream by a client of `http_client`. `websocket` makes such requests of the events that a caller
//! sends over a socket. `telemetry` tells what happened. [`app`] puts these
//! together from a [`Config`]; [`serve`] runs them until a signal. `journal` keeps what the operator's routes show
//! of the past, `webhooks` posts to receivers what happens, and `operate` is the operator's command line, a
//! client of these.
//!
//! # Examples
//!
//! ```
//! use axum::body::Body;
//! use http::Request;
//! use tower::ServiceExt;
//! use tower_agent_gateway::{Runs, app, demo};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), tower_agent::BoxError> {
//! let upstream = demo::spawn().await?;
//! let runs = Runs::new();
//! let app = app(&demo::config(upstream)?, &runs)?;
//!
//! // Each attempt at this model fails, so another model serves.
//! let body = r#"{"model":"sim-failing","messages":[{"role":"user","content":"hi"}]}"#;
//! let request = Request::post("/v1/chat/completions")
//!     .header("content-type", "application/json")
//!     .body(Body::from(body))?;
//! let answer = app.oneshot(request).await?;
//!
//! assert_eq!(answer.status(), 200);
//! assert_eq!(answer.headers()["x-served-model"], "sim-healthy");
//! # Ok(())
//! # }
//! ```

/// Compiles the example of the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct GatewayReadme;

mod app;
mod background;
mod config;
pub mod demo;
mod http;
mod http_client;
mod journal;
mod operate;
mod printing;
mod probe;
mod routes;
mod runs;
mod serve;
mod stacks;
mod telemetry;
mod webhooks;
mod websocket;

pub use self::{
    app::{App, AppFuture, AppService, app},
    config::Config,
    operate::OperatorCommand,
    printing::{complain, print},
    probe::{Probe, probe},
    runs::Runs,
    serve::serve,
    telemetry::{LineWriter, LogFields, LogTime, Telemetry},
};
pub use tower_agent::config::ConfigError;
