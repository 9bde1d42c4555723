//! The wrappers of a supervised call: a response future, then a response body.
//!
//! Every layer that acts on a node wraps the response future and the body in these types. In each
//! poll the outermost wrapper of a node is the node's *enforcer*. Before the poll of the inner
//! future or body, the enforcer checks whether the node has ended. When the inner one is pending,
//! and at every 16th ready frame in a row, the enforcer compares the deadlines of the node, and of
//! the nodes above, with the clock. Once the node has ended, the enforcer drops the inner future or
//! body in the same poll. The other wrappers of the node rely on the enforcer for both checks, and
//! only report the next deadline of their own windows; at an error each wrapper checks the clocks
//! itself. A wrapper's role holds for one poll, so a call may move between tasks. The wrapper that
//! opened the node settles the node; a node that the caller attached to the request is settled by
//! the first wrapper that saw it.
//!
//! [`ResponseMarks`] is the part that outer layers see. The innermost layer classifies each
//! event of a stream once, and publishes the stream's marks in the response's extensions.
//!
//! [`ReplayBody`](crate::ReplayBody) is the counterpart for requests: a body that can
//! be sent again.
//!
//! ```
//! use tower_agent::supervise::ResponseMarks;
//!
//! fn usage<B>(response: &http::Response<B>) -> Option<tower_agent::llm::dialect::Usage> {
//!     response.extensions().get::<ResponseMarks>()?.usage()
//! }
//! ```

mod body;
mod claim;
mod future;
mod marks;
mod observer;
mod read_request;
mod settings;
mod step_window;
mod supervisor;
mod timer;
mod unary_tokens;

pub use self::{body::SupervisedBody, future::SupervisedFuture, marks::ResponseMarks};

pub(crate) use self::{
    claim::Claim,
    marks::MarkingReader,
    observer::{Observer, dialect_of, operation_of},
    read_request::{ReadRequest, RequestReader, Upload},
    settings::{LayerHooks, LayerSettings},
    step_window::StepWindow,
    supervisor::reason_of,
    timer::{TaskTimer, poll_until_end},
};
