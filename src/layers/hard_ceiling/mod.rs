//! Ends a call, an attempt or a run at an absolute limit.
//!
//! A stream that trickles for ever, and a turn that goes from tool to tool without an end, both
//! make progress, hold a connection and cost tokens, so no step window ends them. The ceiling does:
//! no event resets it.
//!
//! # When the clock runs
//!
//! The clock runs from the opening of the node, through waits, backoff, body and pauses. The layer
//! checks the clock at every `Pending`, and at every 16th frame in a row of a stream that is always
//! ready. A [`timeout`](HardCeilingLayer::timeout) is a second absolute limit with a separate
//! reason: the total time that the program allows its callers.
//!
//! Of several deadlines on one node the earliest holds. Another layer may have set one, or an
//! earlier request of the same run.
//!
//! The program may put [`Limits`](crate::Limits) into a request's extensions. For that request a
//! ceiling or timeout in them takes the place of the layer's own, be it shorter or longer, and zero
//! means that the layer sets none. A deadline that stands on the node already is never postponed by
//! them. A layer without a ceiling and without a timeout reads these `Limits` only with
//! [`caller_deadline`](HardCeilingLayer::caller_deadline), and never in shadow mode.
//!
//! # What a caller announces
//!
//! Clients give up after a timeout of their own, and many send it in a header. An answer after
//! that time costs tokens, and the client does not read it; a fallback that begins a second
//! before is wasted. With [`caller_deadline(true)`](HardCeilingLayer::caller_deadline) the call
//! ends with [`CallerDeadline`](crate::TerminalReason::CallerDeadline) when its caller would give
//! up, and inner retry and fallback layers know how much time is left.
//!
//! | header | limits |
//! |---|---|
//! | `x-stainless-timeout`, seconds | the time until the head; for an answer that is not an event stream, the time until its end |
//! | `x-stainless-read-timeout`, seconds | the time until the head; then the longest silence between any two bytes |
//! | `grpc-timeout`, up to eight digits and one of `H`, `M`, `S`, `m`, `u`, `n` | the time until the end of the answer, stream or not |
//!
//! The times until the head and until the end count from the opening of the call, and the earliest
//! deadline wins. The silence counts only while the layer waits for the upstream, from the first
//! `Pending` after the head or after a frame, so a slow reader does not use up the limit. Every
//! frame ends the silence, also a ping. A [`pause`](crate::Run::pause) does not stop the count,
//! because the caller does not know of the pause.
//!
//! An announced limit can end a call earlier than the other limits, and postpones none of them. In
//! any scope the limit ends the call, never a run that spans calls: if the node in the request is
//! such a run, the layer opens a call in it. Inside of a retry layer the limit is a deadline of the
//! call to which the attempt belongs, if there is one.
//!
//! The layer ignores a value that is unreadable, not a number or not above zero, and logs it at
//! debug level: such a value neither refuses nor ends the call. If one header has several values,
//! the shortest counts. A value above 30 days counts as 30 days, and one below a millisecond as a
//! millisecond.
//!
//! The SDKs announce their timeouts as follows (openai-node 6.49, anthropic-ts 1.12,
//! openai-python 3.54 and anthropic-python 2.12):
//!
//! - The SDKs for Node send `x-stainless-timeout`: Anthropic's with every request, OpenAI's only if
//!   the request has a timeout of its own. Those SDKs drop the fraction: a timeout below a second
//!   is sent as `0`, which this layer ignores. The SDK's timer runs from `fetch` to the head, also
//!   for a JSON answer: its head mostly comes with its body. If a JSON answer trickles after an
//!   early head, this layer ends the call, though the SDK would wait.
//! - The layer counts the time until the head from the opening of the call, even while the client
//!   still sends its prompt; a client that starts its timer after the prompt has waited less.
//! - The SDKs for Python send `x-stainless-read-timeout` with every request, 600 by default: the
//!   longest time between two reads of their HTTP client, before the head and in the body. A
//!   client without a timeout does not send it. Anthropic's SDK sends the same number as
//!   `x-stainless-timeout`, or sends `None` or `NOT_GIVEN` there; the same number under both
//!   names counts as the read timeout.
//!
//! # Shadow mode
//!
//! A limit that is too short ends work that was fine, which shows only afterwards. With `observe` a
//! layer measures and ends nothing. At the first `Pending` after a limit has passed, observers get
//! a [`WouldHaveEnded`](crate::RunNotice::WouldHaveEnded). If the node completes after that,
//! observers get a [`FalsePositive`](crate::RunNotice::FalsePositive), which is also logged as a
//! warning. [`RunRegistry::shadow`](crate::RunRegistry::shadow) counts both. A second layer, with a
//! limit known to be safe, may enforce that limit in the same stack.
//!
//! # Same instant
//!
//! A stored reason wins. Then a ready answer, frame or end of the body wins over the clock, except
//! at each 16th ready frame in a row. Of several nodes with a passed clock the outermost ends; on one
//! node the ceiling wins over the step window, and the step window over the caller's deadline. An
//! error of the inner service comes last.
//!
//! # Order
//!
//! Outside of a retry or fallback layer this layer bounds the call with all its attempts; inside
//! of one it bounds an attempt. On servers, this layer belongs inside of a
//! [`PumpLayer`](crate::PumpLayer): without a pump, a caller that stops reading stops the polls
//! of the body, and so every check of a clock. The pump checks the limits of the call and of its
//! run; the limit of an attempt is checked when the caller polls.
//!
//! With [`caller_deadline`](HardCeilingLayer::caller_deadline), this layer belongs inside
//! of [`RunLayer`](crate::RunLayer) and of the pump, outside of retry and fallback layers,
//! so that no attempt begins for which the caller does not wait. An early head and the comments
//! of a [`TerminalResponseLayer`](crate::TerminalResponseLayer) further out count as a head and as
//! bytes that the caller got.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one. If this layer opened the run or the call,
//! or was the first layer to get a call that the program attached, a drop before the answer is
//! complete also ends that node as aborted. The poll in which a limit ends the node drops the inner
//! future or body.
//!
//! # Panics
//!
//! A pending poll panics outside of a tokio runtime with its timer enabled, if a clock runs.
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
//! Allows the run at most an hour, and each of its calls at most ten minutes:
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
//! Allows a call the time that its caller announces, and at most ten minutes:
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

mod caller_limits;
mod layer;
#[cfg(test)]
mod tests;

pub use self::layer::{HardCeiling, HardCeilingLayer};
