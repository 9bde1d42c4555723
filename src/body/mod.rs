//! What the layers wrap around an answer: a future until its head, then a body.
//!
//! All layers that act on a node share one wrapper; a policy says what is
//! measured. It ends early in the poll in which its node ends, drops the inner
//! future or body in that same poll, and settles the node if it opened it.
//!
//! [`Judged`] is the part of it that outer layers see: each event of a stream
//! is judged once, by the innermost layer, and the marks travel in the
//! response's extensions.
//!
//! [`ReplayBody`] is the other direction: a request body that can be sent again.
//!
//! ```
//! use tower_agent::body::Judged;
//!
//! fn usage<B>(response: &http::Response<B>) -> Option<tower_agent::sse::Usage> {
//!     response.extensions().get::<Judged>()?.usage()
//! }
//! ```

mod buffering;
mod complete;
mod entry;
mod judged;
mod judging;
mod policy;
mod reading;
mod replay;
mod supervised_body;
mod supervised_future;
mod supervision;
mod tap;
#[cfg(test)]
mod tests;
mod upload;

pub use self::{
    judged::Judged, replay::ReplayBody, supervised_body::SupervisedBody,
    supervised_future::SupervisedFuture,
};

pub(crate) use self::{
    buffering::Buffering,
    complete::{Announced, content_length, has_body, unframe},
    entry::Entry,
    judged::Shifted,
    judging::{Stream, is_plain, names_events},
    policy::Policy,
    reading::{Reading, Reads},
    replay::MAX_BODY,
    supervision::reason_of,
    tap::{Facts, Seen, Tap, dialect_of},
};
