//! A simulated LLM upstream that speaks the OpenAI and Anthropic dialects.
//!
//! The upstream lets the gateway run without a key or a network, and fails on demand: the
//! request's `model` chooses how the answer goes wrong (see [`behaviour`]). `GET /stats` counts
//! the requests that arrived, and those that were dropped before their answer was complete. A
//! test reads there that upstream work was released.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use axum::serve::ListenerExt;
use tokio::net::TcpListener;

mod answer;
mod anthropic_messages;
pub(crate) mod behaviour;
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
pub(crate) async fn spawn() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let addr = listener.local_addr()?;
    // Deltas are small writes; with Nagle's algorithm they would arrive in clumps.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    tokio::spawn(async move { axum::serve(listener, routes::router()).await });
    Ok(addr)
}
