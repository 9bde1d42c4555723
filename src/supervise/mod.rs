//! The wrappers of a supervised call: a response future, then a response body.
//!
//! A layer that acts on a node wraps the response future and the body in these types. In each poll
//! the outermost wrapper of a node is the node's *enforcer*; the role holds for one poll, so a call
//! may move between tasks.
//!
//! Before the enforcer polls the inner future or body, it checks whether the node has ended. When
//! the inner one is pending, and at every 16th ready frame in a row, it compares the deadlines of
//! the node, and of the nodes above, with the clock. If one of these checks finds the node ended,
//! the enforcer drops the inner future or body in the same poll.
//!
//! The other wrappers of the node rely on the enforcer for these checks. They only report the next
//! deadline of their own windows. At an error of the inner one each wrapper checks the clocks
//! itself.
//!
//! The wrapper that opened the node settles the node. A node that the program attached to the
//! request is settled by the first wrapper that saw it.
//!
//! The innermost layer classifies each event of a stream once, and publishes the stream's marks in
//! the response's extensions. Outer layers read these [`ResponseMarks`].
//!
//! The wrappers of this module are for responses. For requests, a
//! [`ReplayBody`](crate::ReplayBody) is a body that can be sent again.
//!
//! ```
//! use tower_agent::supervise::ResponseMarks;
//!
//! fn usage<B>(response: &http::Response<B>) -> Option<tower_agent::llm::dialect::Usage> {
//!     response.extensions().get::<ResponseMarks>()?.usage()
//! }
//! ```

mod body;
mod buffered_call;
mod claim;
mod future;
mod held;
mod layer_hooks;
mod layer_settings;
mod observer;
mod service;
mod speed_floor;
mod step_window;
mod stream_marks;
mod supervised_call;
#[cfg(test)]
mod tests;
mod timer;
mod two_parts;
mod unary_tokens;
mod undecided;

pub use self::{
    body::SupervisedBody,
    future::SupervisedFuture,
    held::{HeldFuture, HoldingService},
    service::SupervisedService,
    stream_marks::ResponseMarks,
};

pub(crate) use self::{
    buffered_call::{BufferedCall, RequestReader, Upload},
    claim::Claim,
    held::{AdmitsHeld, HoldsCalls},
    layer_hooks::{LayerHooks, reason_of_drop},
    layer_settings::LayerSettings,
    observer::{Observer, dialect_of, operation_of},
    service::SupervisesCalls,
    speed_floor::{FlooredWindow, SpeedFloor},
    step_window::StepWindow,
    stream_marks::{BodyForm, MarkingReader, PossibleStream},
    supervised_call::reason_of,
    timer::{TaskTimer, poll_until_end},
    undecided::name_stream,
};
