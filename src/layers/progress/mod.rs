//! Says that a call which takes long is still under way.
//!
//! A model that thinks for three minutes looks like one that hangs. People give up
//! and ask again, and a proxy cuts a connection on which nothing came for a
//! minute. This layer tells observers what is taking so long, and keeps an event
//! stream from falling silent: a write to a client who has gone fails, and is
//! noticed, which nothing else does while the model is silent.
//!
//! # What is told
//!
//! "Still working: llm_call has been running for 30 s", as
//! [`RunNotice::Working`](crate::RunNotice::Working) to those who
//! [watch](crate::Run::subscribe) the run, and with
//! [`comments`](ProgressLayer::comments) to the caller. Tools of the run are told
//! of in the same way, each on its own, but not in the answer. There is no notice
//! for a step that is over, nor at the instant in which it ends.
//!
//! # When the clock runs
//!
//! From the first `Pending` of the response future to the end of the body, or its
//! dialect's terminator. Content that is handed on puts notices off.
//! Keep-alive comments are apart from that: they come when nothing, not even a
//! comment, was handed on for 15 s. A reader that does not poll is sent nothing,
//! and finds one comment when it returns.
//!
//! # What is inserted
//!
//! Comments stand between events only, in a `text/event-stream` that is not
//! compressed, and never behind its terminator or its error. They count for
//! nothing: no step window is reset by them, and the marks of
//! [`ResponseMarks`](crate::supervise::ResponseMarks) that layers further out see are shifted by
//! them. While an upstream is silent within an event, or behind a CR,
//! to which a LF may belong, nothing is inserted. Such a
//! stream loses its `Content-Length`.
//!
//! # An early head
//!
//! Some proxies wait for a head only so long. With
//! [`early_head`](ProgressLayer::early_head) a request for a stream is answered
//! with a 200 of this layer's own if none came in time, and the body drives the
//! call. Everything that fails then is an error of the body, which
//! [`TerminalResponseLayer`](crate::TerminalResponseLayer) turns into an error
//! event: an end, a transport error, and any answer that is no stream of events,
//! as [`NotAStream`](crate::llm::failure::NotAStream) with its status and message.
//! Headers and extensions of the answer that comes then are lost, but for the marks
//! of the stream. Inside of a layer that may try again there is none: that one keeps
//! heads to itself, and goes by what they say.
//!
//! # Order
//!
//! Inside of the layers that act on the call, outside of
//! [`ModelFallbackLayer`](crate::ModelFallbackLayer) and
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer), so that it sees the whole call
//! and an early head satisfies a
//! [caller's deadline](crate::HardCeilingLayer::caller_deadline). It never opens a
//! run: without one in the request, it learns it from the answer, and notices
//! before that are only logged.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops what is inside.
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
//! Behind a proxy that waits half a minute for a head, with notices for people who
//! watch the stream itself:
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
mod future;
mod keep_alive;
mod layer;
mod outlet;
mod pulse;
mod refused;
mod service;

pub use self::{
    body::ProgressBody, future::ProgressFuture, layer::ProgressLayer, service::Progress,
};
