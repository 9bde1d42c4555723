//! Turns the end of a run into an HTTP answer, or into an error event of its stream.
//!
//! A client must be able to tell a cut answer from a finished one. Official SDKs take a
//! stream that ends cleanly without its terminator for a success. They also retry a 504
//! twice, which starts the run that was just stopped two more times. This layer answers
//! with the status, the dialect's error shape and `x-should-retry: false`. A cut stream
//! ends with an event for which every official SDK raises an error, and never cleanly.
//!
//! # What is changed
//!
//! - An error becomes an answer: a [`Terminated`](crate::Terminated) by its reason, a body
//!   over its limit 413, an unusable id or an
//!   [`InvalidRequest`](crate::error::InvalidRequest) 400, a failed transport 502, an inner
//!   service that is not ready 503, any other error 500. Only answers with a terminal
//!   reason carry `x-terminal-reason` and `x-should-retry`.
//! - A stream of events loses its `Content-Length`, because another event may always
//!   follow. It is handed on up to the last event boundary; at most 1 MiB is held back. If
//!   it is cut, the error event replaces the rest. An upstream's own error event passes
//!   unchanged, and is then the only one, unless it is in another dialect, which the
//!   caller's SDK would ignore: then the layer's own follows it. A chat answer that ends
//!   without `[DONE]` gets it if all its choices have finished.
//! - A cut body that is no stream of events ends with an error, never cleanly.
//! - The layer removes a `transfer-encoding`, and a `Content-Length` that is not the exact
//!   size of the body. Answers to HEAD and a 304 keep theirs: it is the length of a body
//!   that they do not have. A server that wrote a length and then more bytes would let an
//!   upstream answer the caller's next request.
//!
//! Everything else passes unchanged.
//!
//! # Order
//!
//! This layer is the outermost. It opens no run; it finds the run in the answer's extensions or in
//! the error.
//!
//! # Uploads
//!
//! The answer for a run that is over comes before the request's body was read, and hyper
//! closes an HTTP/1 connection with half a body dropped: a client that is still sending may
//! see a reset instead of the answer. A server that takes long requests should read such a
//! body to its end, within bounds, as `crates/tower-agent-gateway/src/upload.rs` does.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one.
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
//! Sets another status, if a proxy in front replaces the bodies of a 504:
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
mod layer;
mod stream;

pub use self::layer::{
    TerminalResponse, TerminalResponseBody, TerminalResponseFuture, TerminalResponseLayer,
};
