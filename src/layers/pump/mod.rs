//! Ends a call at its deadlines even if its caller does not read.
//!
//! A server stops polling a body when the socket takes no more bytes. So a client that stops
//! reading stops every clock inside the body, and can hold the upstream connection without limit.
//! The caller polls a pumped call as any other, but the pump shares the call with a waker. When the
//! node of the call ends or a deadline passes, the waker spawns a task that drops the call, whether
//! the caller polls or not. Until then the call needs no task.
//!
//! # When the clock runs
//!
//! The pump watches the absolute deadlines of the node and of the nodes above it, from the first
//! `Pending` of the call or from the head of its answer on. A deadline that becomes earlier counts
//! at once. A deadline of an attempt below the node is checked only in polls of the call. Step
//! windows do not run while the caller does not read, because the call then does not wait for the
//! upstream. The pump reads nothing ahead of its caller: only a [drain](#draining) reads on.
//!
//! # Same instant
//!
//! If a frame and a clock are ready in the same instant, a caller that waits gets the frame. A
//! stored reason wins over a frame.
//!
//! # Order
//!
//! The pump belongs inside of [`RunLayer`](crate::RunLayer), outside of the timed layers. The pump
//! does the work of a [`ClientDisconnectLayer`](crate::ClientDisconnectLayer), so that layer is not
//! needed; further out it ends a call that the pump would drain. The pump is for servers only.
//!
//! # Cancel safety
//!
//! Without a [drain](#draining), dropping the future or an incomplete body stores
//! [`ClientDisconnect`](crate::TerminalReason::ClientDisconnect), unless a reason is stored, and
//! drops the inner future or body at once. If the node ends by another cause, a task of the pump
//! soon drops the inner future or body, unless a poll by the caller does so first. A task of the
//! pump runs on the runtime, and in the tracing span, in which the call was made.
//!
//! # Draining
//!
//! An upstream bills a dropped attempt too, and reports its usage only at the end of the stream.
//! With [`drain`](PumpLayer::drain) a drop by the caller closes the call: no retry, no other
//! candidate, no call and no tool starts at or below its node. An attempt in progress goes on in a
//! task, with its frames discarded.
//!
//! A drained call ends as `ClientDisconnect` once no work of it is left, and at the limit at the
//! latest, even if its answer ended well, because the caller did not get the answer. Deadlines and
//! ends from outside still hold, and win. [`RunLayer::on_end`](crate::RunLayer::on_end) is called
//! after that end.
//!
//! If the caller leaves before the first poll, in the wait before a retry, or while the service is
//! not ready, there is no usage to learn, and the call ends at once.
//!
//! # Panics
//!
//! `call` panics outside of a tokio runtime, and a pending poll of a call with a deadline panics in
//! a runtime without its timer. A panic of the inner service reaches the caller that polls; a panic
//! in a task of the pump, which drops or drains a call, ends that task alone.
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
//!     .layer(PumpLayer::new())
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
//! let pump = PumpLayer::new().drain(Some(Duration::from_secs(30)));
//! ```

mod call;
mod drain;
mod layer;
mod work;

pub use self::layer::{Pump, PumpBody, PumpFuture, PumpLayer};
