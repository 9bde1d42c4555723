//! Turns errors and ends of runs into HTTP answers, or into error events of streams.
//!
//! A client must be able to distinguish a cut answer from a finished one. Official SDKs take a
//! stream that ends cleanly without its terminator for a success. SDKs also retry a 504 twice,
//! which starts the run that was just stopped two more times.
//!
//! For a run that has ended, this layer answers with the reason's status and an error in the shape
//! of the caller's dialect. Unless an upstream failed, the answer has `x-should-retry`: `true`
//! after a shutdown, else `false`. A stream that is cut before its terminator never ends cleanly:
//! it ends with an event for which every official SDK raises an error.
//!
//! # What is changed
//!
//! - An error becomes an answer. By default a [`Terminated`](crate::Terminated) of the run gets the
//!   status of its reason; an upload that broke off, an unusable id or an
//!   [`InvalidRequest`](crate::error::InvalidRequest) 400; a body over its limit 413; a failed
//!   transport, a redirect or a truncated answer 502; a cooldown of all candidates 503. Any other
//!   error gets 500, or 503 if it comes from the inner service's `poll_ready`. Of these answers,
//!   only those with a terminal reason other than `upstream_failed` have `x-terminal-reason` and
//!   `x-should-retry`.
//! - An event stream loses its `Content-Length`, because an error event may follow, and gets
//!   `cache-control: no-cache` and `x-accel-buffering: no`, so that no proxy holds events back. The
//!   caller gets whole events: the layer holds back the start of an incomplete event, up to 1 MiB.
//!   If the stream is cut, the error event replaces the held bytes.
//! - An upstream's own error event passes unchanged, and the layer adds no other. If the caller's
//!   SDK would ignore the event, because it is one of another dialect, JSON without a field or a
//!   field `error`, the layer puts one of the caller's dialect in its place.
//! - A stream that is whole gets what its upstream left out at the end: the blank line of its last
//!   event, and `[DONE]` of a chat stream of which all choices have finished, or `message_stop` of
//!   a message with a stop reason. `response.completed`, or `response.incomplete`, takes the place
//!   of a `response.done`.
//! - Nothing follows the terminator of a chat or message, and a byte order mark is removed.
//! - A cut body that is not an event stream ends with a body error, never cleanly.
//! - The layer removes a `transfer-encoding`, and a `Content-Length` that is beside it, is
//!   unreadable, or is not equal to an exact size hint of the body. In an answer to HEAD and in a
//!   304 the size is not compared, because their body is not sent. If a server sent more bytes than
//!   the length, an upstream could forge the answer to the caller's next request.
//!
//! # A caller that waits
//!
//! A model that thinks for three minutes looks like one that hangs. Users give up and ask again,
//! and a proxy cuts a connection that had no bytes for a minute. The layer has three settings
//! against that, which are off by default:
//!
//! - [`keep_alive`](TerminalResponseLayer::keep_alive): a comment, when the caller of an event
//!   stream got nothing, not even a comment, for a time. In the dialect of Anthropic it is a `ping`
//!   event, which its SDKs skip. The comments also help the server to notice a disconnected client,
//!   since a write to it fails. A reader that does not poll gets at most one comment when it polls
//!   again, not all that it missed.
//! - [`notices`](TerminalResponseLayer::notices): "Still working: llm_call has been running for
//!   30 s", as [`RunNotice::Working`](crate::RunNotice::Working) to
//!   [subscribers](crate::Run::subscribe) of the run, and with
//!   [`comments`](TerminalResponseLayer::comments) to the caller. Subscribers get such notices
//!   about each slow tool of the run too; the caller does not. The clock runs from the first
//!   `Pending` of the response future to the end of the body, or to the terminator of a stream.
//!   Content of the upstream postpones the next notice.
//! - [`early_head`](TerminalResponseLayer::early_head): a 200 of this layer, for proxies that
//!   limit the wait for a head, if the call has not answered a request for a stream in time. The
//!   body then drives the call, with its retries and fallbacks, and every later failure becomes an
//!   error event in it: the end of a node, a transport error, and any answer that is not an event
//!   stream, with its status, code and message. The headers and extensions of the late answer are
//!   lost. A HEAD request gets no early head, nor one with [`WithoutEarlyHead`]. Nor does an attempt, if this layer stands inside of
//!   one that retries: that layer decides by the upstream's own head.
//!
//! Comments stand between events only, in a `text/event-stream` without compression, and never
//! after its terminator or its error event; while a finished answer waits for them, they go on. A
//! comment is one line, and no blank line follows: some
//! clients take one for the end of an event, and parse its data, which is empty. The layer inserts
//! nothing while the upstream is silent within an event, or after a CR that a LF may complete.
//! Comments and pings are not progress: they reset no step window. For the limits that a caller
//! [announces](crate::layers::hard_ceiling#what-a-caller-announces) a comment counts as bytes, and
//! an early head counts as a head.
//!
//! # Same instant
//!
//! The end of a call or a ceiling wins over a notice, a comment or an early head that is due at
//! that instant.
//!
//! # Order
//!
//! This layer is the outermost, and opens no run. It learns the call from the layer that opens it;
//! until then, notices go to the log alone.
//!
//! # Uploads
//!
//! This layer may answer for a run that is over before the request's body was read. hyper then
//! closes an HTTP/1 connection, and a client that is still sending may see a reset instead of the
//! answer. A server that takes long requests should read such a body to its end, within bounds,
//! as `crates/tower-agent-gateway/src/request_body.rs` does.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one; after an early head, dropping the body
//! drops the call.
//!
//! # Panics
//!
//! With a setting for a caller that waits, a pending poll that needs a timer panics outside of a
//! tokio runtime with its timer enabled.
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
//! Behind a proxy that waits half a minute for a head, with notices as comments in the stream:
//!
//! ```
//! use std::time::Duration;
//! use tower_agent::{ProgressNotices, TerminalResponseLayer};
//!
//! let layer = TerminalResponseLayer::new()
//!     .keep_alive(Some(Duration::from_secs(10)))
//!     .notices(ProgressNotices::new().after(Duration::from_secs(20)).at_most(5))
//!     .comments(true)
//!     .early_head(Duration::from_secs(25));
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

mod body;
mod error_answer;
mod frame_queue;
mod keep_alive;
mod layer;
mod stream;
mod wants_stream;

pub use self::{
    body::TerminalResponseBody,
    keep_alive::WithoutEarlyHead,
    layer::{TerminalResponse, TerminalResponseFuture, TerminalResponseLayer},
};
