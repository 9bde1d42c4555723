use std::{error::Error, fmt};

use http::StatusCode;

use super::class::FailureClass;

/// An answer that is no stream of events came behind the head of one, which a
/// [`ProgressLayer`](crate::ProgressLayer) had sent.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAStream {
    /// The answer's.
    pub status: StatusCode,
    /// As what it was judged.
    pub class: FailureClass,
    /// The upstream's own words, at most 1 KiB; empty if it had none.
    pub message: String,
}

impl NotAStream {
    pub(crate) const fn new(status: StatusCode, class: FailureClass, message: String) -> Self {
        Self {
            status,
            class,
            message,
        }
    }
}

impl fmt::Display for NotAStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status;
        write!(f, "upstream answered {status} and no stream of events")?;
        match &*self.message {
            "" => Ok(()),
            message => write!(f, ": {message}"),
        }
    }
}

impl Error for NotAStream {}
