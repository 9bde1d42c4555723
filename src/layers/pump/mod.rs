//! Runs a call in a task of its own, so that its deadlines hold while the caller does not read.
//!
//! A server stops polling a body when the socket takes no more bytes. So a client that stops
//! reading stops every clock inside the body, and can hold the upstream connection without limit.
//! The pump polls the call in a task, which sends the frames to the caller's body through a
//! bounded channel. While the channel is full, the task waits for room in it and for the end of
//! the node.
//!
//! # When the clock runs
//!
//! Absolute deadlines of the node and of the nodes above it always run. Step windows of layers
//! inside do not run while the channel is full, because the task then does not wait for the
//! upstream.
//!
//! # Same instant
//!
//! If a frame and a clock are ready in the same instant, the caller gets the frame. A stored
//! reason wins over frames in the channel, which are dropped.
//!
//! # Order
//!
//! The pump belongs inside of [`RunLayer`](crate::RunLayer), outside of the timed layers. It does
//! the work of a [`ClientDisconnectLayer`](crate::ClientDisconnectLayer), so none is needed; one
//! further out ends a call that the pump would drain. The pump is for servers only.
//!
//! # Cancel safety
//!
//! Dropping the future or an incomplete body stores
//! [`ClientDisconnect`](crate::TerminalReason::ClientDisconnect), unless a reason is stored, and
//! then aborts the task: the runtime drops the upstream when it next schedules the task. The task
//! runs in the tracing span of the caller.
//!
//! # Draining
//!
//! An upstream bills a dropped attempt too, and reports its usage only at the end of the stream.
//! With [`drain`](PumpLayer::drain) a drop by the caller closes the call and does not end it: no
//! retry, no other candidate, no call and no tool starts at or below its node, and the attempt in
//! progress goes on, with its frames discarded. The call ends as `ClientDisconnect` once no work
//! of it is left, and at the limit at the latest, even if its answer ended well, because the
//! caller did not get it. Deadlines and ends from outside still hold, and win. If the caller
//! leaves before the call began, in the wait before a retry, or while the service is not ready,
//! there is no usage to learn, and the call ends at once.
//! [`RunLayer::on_end`](crate::RunLayer::on_end) is called after that end.
//!
//! # Panics
//!
//! `call` panics outside of a tokio runtime. If the inner service panics, the caller gets
//! [`PumpStopped`].
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
//! Drains for at most half a minute, to learn what an abandoned answer costs:
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
