//! A simulated LLM upstream that speaks the OpenAI and Anthropic dialects.
//!
//! It needs no key and no network, and fails on demand: the request's `model` chooses how the answer
//! goes wrong, see [`MODELS`]. `GET /stats` counts the requests that arrived, and those that were
//! dropped before their answer was complete. A test reads there that upstream work was released.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> std::io::Result<()> {
//! let address = tower_agent_simulator::spawn().await?;
//! println!("OPENAI_BASE_URL=http://{address}/v1");
//! # Ok(())
//! # }
//! ```

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

mod answer;
mod anthropic_messages;
mod behavior;
mod error_answer;
mod error_content;
mod openai_chat;
mod openai_embeddings;
mod openai_images;
mod openai_responses;
mod request;
mod routes;
mod scripted_body;
mod sse;
mod stats;

pub use self::routes::router;

/// The names of the simulated models, as `GET /v1/models` lists them.
///
/// The README has a table of what each answers.
pub const MODELS: [&str; 15] = behavior::names();

/// Compiles the example of the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct SimulatorReadme;

/// Serves the upstream on a free loopback port until the runtime shuts down. It speaks
/// HTTP/1.1, and HTTP/2 with prior knowledge.
///
/// # Errors
///
/// If no loopback port can be bound.
#[expect(
    clippy::disallowed_methods,
    reason = "a server of its own, off the request path"
)]
pub async fn spawn() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let addr = listener.local_addr()?;
    // Deltas are small writes; with Nagle's algorithm they would arrive in clumps.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    tokio::spawn(async move { axum::serve(listener, router()).await });
    Ok(addr)
}
