//! The wrappers of a supervised call: a response future, then a response body.
//!
//! All layers that act on a node share these wrappers; its settings say what a layer
//! measures. In each poll the outermost wrapper of a node is its *enforcer*: it looks for
//! an end before it polls, compares the clocks when the inner future or body is pending,
//! and drops all that is nested in it in the poll in which the node ends. The wrappers
//! inside pass on, and say when their windows will pass. A wrapper has a role for one poll,
//! so a call may move between tasks. A wrapper that opened its node settles it.
//!
//! [`ResponseMarks`] is the part that outer layers see. The innermost layer judges each
//! event of a stream once, and its marks travel in the response's extensions.
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
mod supervisor;
mod timer;
mod window;

pub use self::{body::SupervisedBody, future::SupervisedFuture, marks::ResponseMarks};

pub(crate) use self::{
    claim::Claim,
    marks::{ShiftedMarks, Stream},
    observer::{FrameKind, Observer, ResponseFacts, dialect_of},
    read_request::{ReadRequest, RequestReader, Upload},
    settings::{Hooks, LayerPart, Settings},
    supervisor::reason_of,
    timer::{TaskTimer, poll_until_end, poll_until_end_and},
    window::StepWindow,
};
