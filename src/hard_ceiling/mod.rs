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

mod layer;
mod policy;
mod service;

pub use self::{
    layer::HardCeilingLayer,
    service::{HardCeiling, HardCeilingBody, HardCeilingFuture},
};
