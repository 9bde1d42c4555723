//! A gateway for OpenAI- and Anthropic-compatible clients, made of [`tower_agent`]'s
//! public API alone.
//!
//! [`app`] makes the gateway's router for a [`Config`] and [`Runs`]. [`serve`] serves the router:
//! it limits each connection, and at a signal ends the runs, with `control.drain` after a time in
//! which they may finish. Without a configuration the program starts a simulated upstream
//! ([`demo`]), so that any SDK can call the gateway without a network or a key.
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

mod access;
mod agent_stacks;
mod api;
mod app;
mod buffered_uploads;
mod check_layer;
mod config;
mod control;
pub mod demo;
mod events;
mod host_check;
mod http_client;
mod line_writer;
mod metrics;
mod missing_path;
mod probe;
mod request_body;
mod routes;
mod run_assignment;
mod runs;
mod server;
mod shutdown;

mod stack_generations;
mod telemetry;
mod unknown_route;
mod watchdog_client;

pub use self::{
    app::{App, app},
    config::Config,
    line_writer::LineWriter,
    probe::{Probe, probe},
    runs::Runs,
    shutdown::serve,
    telemetry::Telemetry,
};
pub use tower_agent::config::ConfigError;
