//! Turns an error or the end of a run into an HTTP answer, or into an error event of its stream.
//!
//! A client must be able to distinguish a cut answer from a finished one. Official SDKs take a
//! stream that ends cleanly without its terminator for a success. They also retry a 504 twice,
//! which starts the run that was just stopped two more times. For a run that has ended, this
//! layer answers with the reason's status, an error in the shape of the caller's dialect, and
//! `x-should-retry`, which is `false` for all reasons but a shutdown. A cut stream never ends
//! cleanly: it ends with an event for which every official SDK raises an error.
//!
//! # What is changed
//!
//! - An error becomes an answer: a [`Terminated`](crate::Terminated) with the status of its
//!   reason, a body over its limit 413, an unusable id or an
//!   [`InvalidRequest`](crate::error::InvalidRequest) 400, a failed transport 502, a cooldown of
//!   all candidates or an inner service that is not ready 503, any other error 500. Only answers
//!   with a terminal reason other than `upstream_failed` have `x-terminal-reason` and
//!   `x-should-retry`.
//! - An event stream loses its `Content-Length`, because an error event may follow. The caller
//!   gets it in whole events: the layer holds back the start of an incomplete event, up to 1 MiB.
//!   If the stream is cut, the error event replaces the held bytes. An upstream's own error event
//!   passes unchanged, and no other follows it, unless it is in another dialect, which the
//!   caller's SDK would ignore: then the layer adds its own. A chat stream that ends without
//!   `[DONE]` gets it if all its choices have finished.
//! - A cut body that is no event stream ends with a body error, never cleanly.
//! - The layer removes a `transfer-encoding`, and a `Content-Length` that is not the exact size
//!   of the body. Answers to HEAD and a 304 keep theirs, the length of a body that is not sent.
//!   If a server sent more bytes than the length, an upstream could forge the answer to the
//!   caller's next request.
//!
//! Everything else passes unchanged.
//!
//! # Order
//!
//! This layer is the outermost. It opens no run; it takes the run from the answer's extensions or
//! from the error.
//!
//! # Uploads
//!
//! This layer may answer for a run that is over before the request's body was read. hyper then
//! closes an HTTP/1 connection, and a client that is still sending may see a reset instead of the
//! answer. A server that takes long requests should read such a body to its end, within bounds,
//! as `crates/tower-agent-gateway/src/upload.rs` does.
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
//! Sets another status, for a proxy in front that replaces the bodies of a 504:
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
