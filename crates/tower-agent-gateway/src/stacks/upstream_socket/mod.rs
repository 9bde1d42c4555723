//! Asks an upstream for responses over a WebSocket that stays open between the turns of a caller.
//!
//! An upstream keeps the latest response of a socket in memory. The next turn then names that
//! response, and sends what is new of its input alone: a conversation of a megabyte is not sent
//! again at each turn. docs/websocket.md says what the API over WebSocket is.
//!
//! [`UpstreamSockets`] is the gateway's HTTP client, and sends a request over a socket if
//!
//! - its candidate has `transport = "websocket"`,
//! - its extensions have an [`UpstreamLane`], on which no other response runs,
//! - it is the call's first attempt: repeats and fallbacks go over POST, as a lane that just failed
//!   may fail again,
//! - it is a POST to a path that ends in `/responses`, of a JSON object with `stream: true`, and
//! - its URL has not refused a WebSocket within the last ten minutes.
//!
//! Any other request goes over POST. The layers see no difference: the events of the socket become
//! the events of an SSE stream, and an error frame before any other event becomes the HTTP answer
//! that says the same.
//!
//! # Cancel safety
//!
//! Dropping the future, or the body before its last event, drops the socket at once. An upstream
//! knows no other way to learn that nobody waits. A socket is kept only after the last event of a
//! response.

mod body;
mod continuation;
mod error;
mod event;
mod exchange;
mod lane;
mod service;
mod socket;
#[cfg(test)]
mod tests;
mod upgrade;

pub(crate) use self::{lane::UpstreamLane, service::UpstreamSockets};
