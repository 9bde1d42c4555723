//! Runs a call in a task of its own, so that its deadlines hold whatever the
//! reader does.
//!
//! A server stops polling a body when the socket takes no more. A client that
//! stops reading so freezes every clock inside the body, and holds the
//! upstream connection for as long as it likes. The pump polls the call in a
//! task and hands frames over through a bounded channel; while the channel is
//! full, the task waits for room and for the end of its node together.
//!
//! # When the clock runs
//!
//! Absolute deadlines of the node and of what is above it always run. Step
//! windows of layers inside do not run while the channel is full: nothing is
//! waited for but the reader.
//!
//! # Same instant
//!
//! A frame that is handed over wins over a clock; a stored reason wins over
//! frames that lie in the channel, which are dropped.
//!
//! # Order
//!
//! Inside of [`RunLayer`](crate::RunLayer), outside of the timed layers and of
//! [`ClientDisconnectLayer`](crate::ClientDisconnectLayer), whose part it takes
//! over. One that stands further out cancels what the pump would drain. On
//! servers only.
//!
//! # Cancel safety
//!
//! Dropping the future or an incomplete body stores
//! [`ClientDisconnect`](crate::TerminalReason::ClientDisconnect), unless a
//! reason is stored, then aborts the task: the upstream is dropped within one
//! turn of the scheduler. The tracing span of the caller is kept.
//!
//! # Draining
//!
//! An attempt that is dropped is paid for all the same, and the upstream says
//! what it cost at its end. With [`drain`](PumpLayer::drain) the call is closed
//! in place of ended: nothing starts at or below its node any more, no retry, no
//! other candidate, no call and no tool, and what is under way goes on, with
//! its frames thrown away. The call ends as `ClientDisconnect` once nothing of
//! it is left, and at the limit at the latest, though its answer ended well:
//! the caller did not get it. Deadlines and ends from outside hold meanwhile,
//! and win. Before the call began, in the wait before a retry, or while the
//! service is not ready there is nothing to learn, and it ends at once.
//! [`RunLayer::on_end`](crate::RunLayer::on_end) is told once it is over.
//!
//! # Panics
//!
//! The call panics outside of a tokio runtime. If the inner service panics,
//! the caller gets [`PumpStopped`].
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use tower::ServiceBuilder;
//! use tower_agent::{HardCeilingLayer, PumpLayer, RunLayer, RunRegistry};
//!
//! let stack = ServiceBuilder::new()
//!     .layer(RunLayer::new(RunRegistry::new()))
//!     .layer(PumpLayer::new(32))
//!     .layer(HardCeilingLayer::new(Duration::from_secs(600)));
//! ```
//!
//! Half a minute to learn what an abandoned answer costs:
//!
//! ```
//! use std::time::Duration;
//! use tower_agent::{PumpLayer, RunLayer, RunRegistry};
//!
//! let calls = RunLayer::new(RunRegistry::new()).on_end(|call| {
//!     println!("{}: {:?}", call.reason, call.usage);
//! });
//! let pump = PumpLayer::new(32).drain(Some(Duration::from_secs(30)));
//! ```

mod channel;
mod layer;
mod task;

pub use self::{
    channel::PumpStopped,
    layer::{Pump, PumpBody, PumpFuture, PumpLayer},
};
