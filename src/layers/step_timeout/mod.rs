//! Ends a call, an attempt or a run in which nothing was progress for a while.
//!
//! A wall clock kills a turn that chains six slow steps although it was
//! working all the time, and it lets a stream that hangs after its first token
//! hang until the clock is up. A step window does neither: it starts anew with
//! every step and every delta, and ends the node with
//! [`StepTimeout`](crate::TerminalReason::StepTimeout) once a whole window
//! passes in silence.
//!
//! # When the clock runs
//!
//! Only while the upstream is waited for: from the first `Pending` of the
//! response future (so before the head) and from the first `Pending` after a
//! frame. What passes between a frame and the next `Pending` is the reader's
//! time, what passes during a [`pause`](crate::Run::pause) somebody else's;
//! both are taken out. A frame that is no progress (a ping, a comment, the
//! prelude) interrupts the counting and does not reset it. The window is exact
//! to the millisecond of the runtime's timer.
//!
//! In an event stream (`text/event-stream`, not compressed) progress is what
//! the dialect says is a delta; elsewhere every byte is progress.
//! [`resets_on`](StepTimeoutLayer::resets_on) says what resets it.
//!
//! # Local models
//!
//! A model on a slow machine may take a minute for a token, or for a whole answer:
//! no window for progress tells that from one that is dead.
//! [`StepTimeoutLayer::local`] has none. An open connection counts as life, until
//! the stream has shown a heartbeat, which is a comment or a ping. From then on its
//! silence means something: when nothing at all comes for twice the
//! [interval](StepTimeoutLayer::heartbeat), 20 s unless set, the node ends with
//! [`StepTimeout`](crate::TerminalReason::StepTimeout), and the message says that
//! the heartbeats stopped.
//!
//! Neither a delta nor a byte of an answer that is no event stream is a promise of
//! more, so they start no clock; they do restart one that runs. Nor does the first
//! ping of an Anthropic stream before its first content, with which that API begins
//! every stream. A server that sends heartbeats more rarely needs a longer interval.
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
//! A reason that is stored already wins, then a ready frame or a ready answer,
//! whatever the clock says; then the outermost node whose clock has passed,
//! and on one node ceiling, step, caller's deadline; then an error from below.
//!
//! # Order
//!
//! Outside a retry or fallback layer it measures the call, inside of it the
//! attempt, where another may then be tried. Use both. Inside of a
//! [`PumpLayer`](crate::PumpLayer), on servers.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops what is inside, and if this layer
//! opened the run, ends it as aborted. When the window passes, the inner
//! future or body is dropped in the same poll.
//!
//! # Panics
//!
//! Polling panics outside of a tokio runtime with its timer enabled, once
//! something is waited for.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
//! use std::time::Duration;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{StepTimeoutLayer, TerminalReason};
//!
//! let hung = ServiceBuilder::new()
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(120)))
//!     .service(service_fn(|_: Request<()>| {
//!         std::future::pending::<Result<Response<Full<Bytes>>, std::io::Error>>()
//!     }));
//!
//! let error = hung.oneshot(Request::new(())).await.unwrap_err();
//! assert_eq!(TerminalReason::find(&*error), Some(&TerminalReason::StepTimeout));
//! # }
//! ```
//!
//! A local model, which may think as long as it lives:
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_agent::{HardCeilingLayer, StepTimeoutLayer};
//!
//! let stack = ServiceBuilder::new()
//!     .layer(HardCeilingLayer::new(Duration::from_secs(3600)))
//!     .layer(StepTimeoutLayer::local().heartbeat(Duration::from_secs(15)));
//! ```
//!
//! A longer wait for the first token, and a window on the whole run beside it:
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_agent::{Scope, StepTimeoutLayer};
//!
//! let stack = ServiceBuilder::new()
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(300)).scope(Scope::Run))
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(120)).first(Duration::from_secs(240)));
//! ```

mod layer;
mod policy;
mod service;

pub use self::{
    layer::StepTimeoutLayer,
    service::{StepTimeout, StepTimeoutBody, StepTimeoutFuture},
};
