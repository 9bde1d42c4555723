//! Runs a call in a task of its own, so that its deadlines hold without a reader.
//!
//! A server stops polling a body when the socket takes no more bytes. So a client that
//! stops reading freezes every clock inside the body, and holds the upstream connection
//! for as long as it likes. The pump polls the call in a task, and hands frames over
//! through a bounded channel. While the channel is full, the task waits for room and for
//! the end of its node.
//!
//! # When the clock runs
//!
//! Absolute deadlines of the node and of the nodes above it always run. Step windows of
//! layers inside do not run while the channel is full: then the task waits for the reader
//! only.
//!
//! # Same instant
//!
//! A frame that is handed over wins over a clock. A stored reason wins over frames in the
//! channel, which are dropped.
//!
//! # Order
//!
//! The pump belongs inside of [`RunLayer`](crate::RunLayer), outside of the timed layers
//! and of [`ClientDisconnectLayer`](crate::ClientDisconnectLayer), which the pump
//! replaces: one further out cancels a call that the pump would drain. It is for servers
//! only.
//!
//! # Cancel safety
//!
//! Dropping the future or an incomplete body stores
//! [`ClientDisconnect`](crate::TerminalReason::ClientDisconnect), unless a reason is
//! stored, then aborts the task: the upstream is dropped within one turn of the scheduler.
//! The task runs in the tracing span of the caller.
//!
//! # Draining
//!
//! A dropped attempt is billed all the same, and the upstream reports its usage only at
//! the end of the stream. With [`drain`](PumpLayer::drain) a drop closes the call and does
//! not end it: no retry, no other candidate, no call and no tool starts at or below its
//! node, and the attempt that is under way goes on, with its frames discarded. The call
//! ends as `ClientDisconnect` once no work of it is left, and at the limit at the latest.
//! It does so even if its answer ended well, because the caller did not get it. Deadlines
//! and ends from outside still hold, and win. Before the call began, in the wait before a
//! retry, or while the service is not ready, there is no usage to learn, and the call ends
//! at once. [`RunLayer::on_end`](crate::RunLayer::on_end) is called once it has ended.
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
//! Drains for half a minute, to learn what an abandoned answer costs:
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
