//! Turns the end of a run into an HTTP answer, or into an error event of the
//! stream that is under way.
//!
//! A client must be able to tell "cut" from "finished": official SDKs take a
//! stream that ends cleanly without its terminator for a success, and retry a
//! 504 twice, which starts the run that was just stopped two more times. This
//! layer answers with the status, the dialect's error shape and
//! `x-should-retry: false`; a stream ends with an event that every official SDK
//! raises on, and never cleanly before its time.
//!
//! # What is changed
//!
//! - An error becomes an answer: a [`Terminated`](crate::Terminated) as its
//!   reason says, a body over its limit 413, an unusable id or
//!   an [`InvalidRequest`](crate::error::InvalidRequest) 400, a failed transport 502, an inner service that is not ready 503, anything else 500.
//!   Only answers that a reason caused carry `x-terminal-reason` and
//!   `x-should-retry`.
//! - A stream of events loses its `Content-Length`, may always have one more
//!   event, and is handed on only up to the last event boundary (at most 1 MiB
//!   is held back). When it is cut, the rest is dropped and the error event
//!   takes its place. An upstream's own error event is passed on unchanged, and
//!   is then the only one, unless it is in words of another dialect, which the
//!   caller's SDK would not hear: then ours follows it. A chat answer whose choices have all finished, but
//!   that ends without `[DONE]`, is given it.
//! - A body that is no stream of events and is cut ends with an error, never
//!   cleanly.
//! - A `transfer-encoding` is removed, and a `Content-Length` unless it is the
//!   exact size of the body; answers to HEAD and a 304, which announce the length
//!   of a body that they do not have, keep theirs. A server that wrote a length
//!   and then more bytes would let an upstream answer the caller's next request.
//!
//! Everything else passes unchanged.
//!
//! # Order
//!
//! Outermost. It never opens a run; it learns the run from the answer's
//! extensions or the error.
//!
//! # Uploads
//!
//! A run that is over is answered before the request's body was read, and hyper
//! closes an HTTP/1 connection on which half a body was dropped: a client that is
//! still sending may see a reset instead of the answer. A server that takes long
//! requests should read such a body to its end, within bounds, as
//! `examples/gateway/upload.rs` does.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops what is inside.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! use std::time::Duration;
//! use bytes::Bytes;
//! use http::{Request, Response, StatusCode};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{HardCeilingLayer, TerminalReason, TerminalResponseLayer};
//!
//! let service = ServiceBuilder::new()
//!     .layer(TerminalResponseLayer::new())
//!     .layer(HardCeilingLayer::new(Duration::from_secs(600)))
//!     .service(service_fn(|_: Request<()>| {
//!         std::future::pending::<Result<Response<Full<Bytes>>, std::io::Error>>()
//!     }));
//!
//! let answer = service.oneshot(Request::new(())).await.unwrap();
//! assert_eq!(answer.status(), StatusCode::GATEWAY_TIMEOUT);
//! assert_eq!(answer.headers()["x-terminal-reason"], "max_turn_time");
//! assert_eq!(answer.headers()["x-should-retry"], "false");
//! assert_eq!(answer.extensions().get(), Some(&TerminalReason::HardCeiling));
//! # }
//! ```
//!
//! Where an edge replaces the bodies of 504, another status:
//!
//! ```
//! use http::StatusCode;
//! use tower_agent::{TerminalReason, TerminalResponseLayer};
//!
//! let layer = TerminalResponseLayer::new().status(|reason| match reason {
//!     TerminalReason::StepTimeout => StatusCode::UNPROCESSABLE_ENTITY,
//!     other => other.status(),
//! });
//! ```

mod answer;
mod body;
mod layer;
mod stream;

pub use self::{
    body::TerminalResponseBody,
    layer::{TerminalResponse, TerminalResponseFuture, TerminalResponseLayer},
};
