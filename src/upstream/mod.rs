//! What an upstream's answer amounts to.
//!
//! Whether another try is worth it depends on what went wrong, not on which
//! layer noticed. A [`FailureClass`] is that judgement in one word, and
//! [`Connect`](FailureClass::Transport) problems that a client library reports
//! as opaque errors become a [`TransportError`], so that no layer has to guess.
//!
//! ```
//! use http::StatusCode;
//! use tower_agent::upstream::FailureClass;
//!
//! let class = FailureClass::from_status(StatusCode::TOO_MANY_REQUESTS);
//! assert_eq!(class, Some(FailureClass::RateLimit));
//! assert_eq!(FailureClass::from_status(StatusCode::OK), None);
//! ```

mod class;
mod transport;

pub use self::{class::FailureClass, transport::TransportError};
