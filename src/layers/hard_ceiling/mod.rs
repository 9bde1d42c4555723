//! Ends a call, an attempt or a run at an absolute limit, whatever it is doing.
//!
//! A stream that trickles for ever, a turn that goes from tool to tool without
//! an end: each looks alive, and each holds a connection and pays for tokens.
//! The ceiling is the limit that nothing resets.
//!
//! # When the clock runs
//!
//! From the node's opening on, over waiting, backoff, body and pauses. It is
//! compared at every `Pending`, and at least with every 16th frame of a stream
//! that is always ready. A [`timeout`](HardCeilingLayer::timeout) is a second
//! absolute clock, with a reason of its own: the total that the program
//! configured for its callers.
//!
//! Deadlines only tighten: of two layers on one node the earlier limit holds.
//! The program's [`Limits`](crate::Limits) in a request's extensions replace
//! what the layer was built with.
//!
//! # What a caller announces
//!
//! Clients give up after a time of their own, and say so in a header. An answer
//! that comes later is paid for and read by nobody, and a fallback that begins
//! a second before is wasted. With
//! [`caller_deadline(true)`](HardCeilingLayer::caller_deadline) the call ends
//! with [`CallerDeadline`](crate::TerminalReason::CallerDeadline) when its
//! caller would go away, and layers further in that try again know how much
//! time there is.
//!
//! | header | limits |
//! |---|---|
//! | `x-stainless-timeout`, seconds | the head; for an answer that is no event stream the whole of it |
//! | `x-stainless-read-timeout`, seconds | the head; then the longest silence, whatever bytes end it |
//! | `grpc-timeout`, up to eight digits and one of `H`, `M`, `S`, `m`, `u`, `n` | the whole answer, stream or not |
//!
//! All but the silence count from the opening of the call, and the earliest
//! wins. The silence counts only while the upstream is waited for, from the
//! first `Pending` after the head or after a frame, so a slow reader loses
//! nothing by it; every frame ends it, a ping too. A
//! [`pause`](crate::Run::pause) does not stop it, since the caller knows of
//! none.
//!
//! What is announced only tightens, and ends the call, never its run, in any
//! scope: a run that stands in the request itself gets a call for it. Inside of
//! a retry layer it is the call's deadline too, not the attempt's.
//!
//! A value that cannot be read, is not above zero or is no number is ignored,
//! with an event at debug level: it neither refuses nor ends the call. Of
//! several values of one header the shortest counts. More than 30 days are 30
//! days, and less than a millisecond is one.
//!
//! Who sends what (openai-node 6.49, anthropic-ts 1.12, openai-python 3.54 and
//! anthropic-python 2.12):
//!
//! - The SDKs for Node send `x-stainless-timeout`: Anthropic's with every
//!   request, OpenAI's only if the request has a timeout of its own. They drop
//!   the fraction, so a timeout below a second is sent as `0`, which is ignored
//!   here. Their timer runs from `fetch` until it has the head. It is stopped
//!   there also for a JSON answer, whose head mostly comes with its body; one
//!   that trickles after an early head is cut here though the SDK would wait.
//! - The time until the head counts from the call's opening: a client that is
//!   long in sending a prompt has waited less than that.
//! - The SDKs for Python send `x-stainless-read-timeout` with every request,
//!   600 by default: the time in which their HTTP client wants to read
//!   something, before the head and between any two pieces of the body. One
//!   that waits for ever sends none.
//!   Anthropic's repeats it as `x-stainless-timeout`, or sends `None` or
//!   `NOT_GIVEN` there; the same number under both names is taken for the read
//!   timeout that it is.
//!
//! # Shadow mode
//!
//! A limit that is too short kills what works, and one is wiser after the fact.
//! `observe` lets a layer measure and end nothing: each time that the limit passes,
//! observers get a [`WouldHaveEnded`](crate::RunNotice::WouldHaveEnded), and if what it
//! would have ended completes all the same a
//! [`FalsePositive`](crate::RunNotice::FalsePositive), which is logged as a warning too.
//! [`RunRegistry::shadow`](crate::RunRegistry::shadow) counts both. An old limit may
//! go on ending things beside it.
//!
//! # Same instant
//!
//! A reason that is stored already wins, then the end of the body; then the
//! outermost node whose clock has passed, and on one node ceiling, step,
//! caller's deadline; then an error from below.
//!
//! # Order
//!
//! Outside a retry or fallback layer it bounds the call with all its attempts,
//! inside of it one attempt. Inside of a [`PumpLayer`](crate::PumpLayer), on
//! servers: a reader that stops reading stops every clock in a body.
//!
//! With [`caller_deadline`](HardCeilingLayer::caller_deadline): inside of
//! [`RunLayer`](crate::RunLayer) and of the pump, outside of what tries again,
//! so that no try begins for which the caller does not wait. This layer does
//! not see comments that a layer further out inserts to keep the connection
//! alive: a layer that inserts them belongs inside of this one.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops what is inside, and if this layer
//! opened the run, ends it as aborted. When the limit passes, the inner future
//! or body is dropped in the same poll.
//!
//! # Panics
//!
//! Polling panics outside of a tokio runtime with its timer enabled, once
//! something is waited for.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_agent::HardCeilingLayer;
//!
//! let stack = ServiceBuilder::new().layer(HardCeilingLayer::new(Duration::from_secs(600)));
//! ```
//!
//! The run at most an hour, each of its calls at most ten minutes:
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_agent::{HardCeilingLayer, Scope};
//!
//! let stack = ServiceBuilder::new()
//!     .layer(HardCeilingLayer::new(Duration::from_secs(3600)).scope(Scope::Run))
//!     .layer(HardCeilingLayer::new(Duration::from_secs(600)));
//! ```
//!
//! As long as the caller waits, and at most ten minutes:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! use std::time::Duration;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{HardCeilingLayer, TerminalReason};
//!
//! let ten_minutes = HardCeilingLayer::new(Duration::from_secs(600));
//! let hung = ServiceBuilder::new()
//!     .layer(ten_minutes.caller_deadline(true))
//!     .service(service_fn(|_: Request<()>| {
//!         std::future::pending::<Result<Response<Full<Bytes>>, std::io::Error>>()
//!     }));
//!
//! let request = Request::builder().header("x-stainless-timeout", "20").body(()).unwrap();
//! let error = hung.oneshot(request).await.unwrap_err();
//! assert_eq!(TerminalReason::find(&*error), Some(&TerminalReason::CallerDeadline));
//! # }
//! ```

mod caller_deadline;
mod caller_headers;
mod layer;
mod policy;
#[cfg(test)]
mod tests;

pub use self::layer::{HardCeiling, HardCeilingBody, HardCeilingFuture, HardCeilingLayer};
