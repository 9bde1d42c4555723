//! The wrappers of a supervised call: a response future, then a response body.
//!
//! All layers that act on a node share these wrappers; a policy says what a layer
//! measures. A wrapper ends early in the poll in which its node ends, drops the inner
//! future or body in that same poll, and settles the node if it opened it.
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
