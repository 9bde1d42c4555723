//! What the layers wrap around an answer: a future until its head, then a body.
//!
//! All layers that act on a node share one wrapper; a policy says what is
//! measured. It ends early in the poll in which its node ends, drops the inner
//! future or body in that same poll, and settles the node if it opened it.
//!
//! [`ResponseMarks`] is the part of it that outer layers see: each event of a stream
//! is judged once, by the innermost layer, and the marks travel in the
//! response's extensions.
//!
//! [`ReplayBody`](crate::ReplayBody) is the other direction: a request body that can be sent again.
//!
//! ```
//! use tower_agent::supervise::ResponseMarks;
//!
//! fn usage<B>(response: &http::Response<B>) -> Option<tower_agent::llm::dialect::Usage> {
//!     response.extensions().get::<ResponseMarks>()?.usage()
//! }
//! ```

mod body;
mod event_stream;
mod future;
mod marks;
mod observer;
mod policy;
mod read_request;
mod supervisor;
mod timer;

pub use self::{body::SupervisedBody, future::SupervisedFuture, marks::ResponseMarks};

pub(crate) use self::{
    event_stream::{Stream, is_plain, names_events},
    marks::ShiftedMarks,
    observer::{FrameKind, Observer, ResponseFacts, dialect_of},
    policy::{Claim, Policy},
    read_request::{ReadRequest, RequestReader},
    supervisor::reason_of,
    timer::{TaskTimer, poll_until_end, poll_until_end_and},
};
