//! Reports that a slow call is still in progress, and keeps its silent stream alive.
//!
//! A model that thinks for three minutes looks like one that hangs. Users give up and ask again,
//! and a proxy cuts a connection that had no bytes for a minute. This layer notifies observers of
//! the slow step, and inserts comments into a silent event stream. The comments also make the
//! server notice a disconnected client, since a write to it fails; without writes nothing detects
//! the disconnect while the model is silent.
//!
//! # What is reported
//!
//! The layer reports "Still working: llm_call has been running for 30 s", as
//! [`RunNotice::Working`](crate::RunNotice::Working) to [subscribers](crate::Run::subscribe) of
//! the run, and with [`comments`](ProgressLayer::comments) to the caller. Subscribers get such
//! notices about each slow tool of the run too; the caller's response does not. There is no
//! notice for a step that has ended, nor at the instant in which it ends.
//!
//! # When the clock runs
//!
//! The clock of the notices runs from the first `Pending` of the response future to the end of
//! the body, or to its dialect's terminator. Content that the caller gets postpones the next
//! notice. Keep-alive comments have a clock of their own: the layer inserts one when the caller
//! got nothing, not even a comment, for 15 s by default. A reader that does not poll gets one
//! comment when it polls again, not all that it missed.
//!
//! # What is inserted
//!
//! The layer inserts comments between events only, into a `text/event-stream` without
//! compression, and never after its terminator or its error event. The comments are no progress:
//! they reset no step window, and the offsets in the
//! [`ResponseMarks`](crate::supervise::ResponseMarks) that outer layers get allow for them. The
//! layer inserts nothing while the upstream is silent within an event, or after a CR that a LF
//! may complete. A stream with inserted comments loses its `Content-Length`.
//!
//! # An early head
//!
//! Some proxies limit the wait for a head. With [`early_head`](ProgressLayer::early_head) the
//! layer answers a request for a stream with a 200 of its own if the call has not answered in
//! time, and the body then drives the call. Every later failure is an error of the body, which
//! [`TerminalResponseLayer`](crate::TerminalResponseLayer) turns into an error event: an end, a
//! transport error, and any answer that is no event stream, as
//! [`NotAStream`](crate::llm::failure::NotAStream) with its status and message. The headers and
//! extensions of the late answer are lost, except for the marks of the stream. On an attempt, so
//! inside of a layer that retries, the layer sends no early head: the retry layer needs the
//! upstream's own head to decide.
//!
//! # Order
//!
//! This layer belongs inside of the layers that act on the call, outside of
//! [`ModelFallbackLayer`](crate::ModelFallbackLayer) and
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer), so that it covers the whole call and an early
//! head satisfies a [caller's deadline](crate::HardCeilingLayer::caller_deadline). It never opens
//! a run. If the request has no run, the layer takes the run from the response's extensions, and
//! only logs the notices before that.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_agent::{HardCeilingLayer, ProgressLayer, TerminalResponseLayer};
//!
//! let stack = ServiceBuilder::new()
//!     .layer(TerminalResponseLayer::new())
//!     .layer(HardCeilingLayer::new(Duration::from_secs(1800)))
//!     .layer(ProgressLayer::new());
//! ```
//!
//! Behind a proxy that waits half a minute for a head, with notices as comments in the stream:
//!
//! ```
//! use std::time::Duration;
//! use tower_agent::{ProgressLayer, ProgressNotices};
//!
//! let layer = ProgressLayer::new()
//!     .notices(ProgressNotices::new().after(Duration::from_secs(20)).at_most(5))
//!     .comments(true)
//!     .keep_alive(Some(Duration::from_secs(10)))
//!     .early_head(Duration::from_secs(25));
//! ```

mod body;
mod early;
mod layer;
mod outlet;
mod pulse;
mod service;

pub use self::{
    body::ProgressBody,
    layer::ProgressLayer,
    service::{Progress, ProgressFuture},
};
