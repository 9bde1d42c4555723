//! The errors that name a failure of an upstream, or a call that no upstream was asked for.

use std::{error::Error, fmt, io::ErrorKind, time::Duration};

use http::StatusCode;

use super::class::FailureClass;
use crate::error::{BoxError, chain};

/// The upstream of a candidate with a base URL answered 1xx or 3xx: the request
/// would have to go elsewhere, with the prompt, and no caller is handed the answer.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirected {
    /// The answer's.
    pub status: StatusCode,
}

/// A whole answer, announced as JSON under a good status, is no JSON document, or half
/// of one: it does not close what it opens.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncompleteJson {
    /// Its bytes.
    pub length: u64,
}

impl Redirected {
    /// The error of an answer with this status, which is a 1xx or 3xx.
    #[must_use]
    pub const fn new(status: StatusCode) -> Self {
        Self { status }
    }
}

impl IncompleteJson {
    /// The error of an answer of `length` bytes.
    #[must_use]
    pub const fn new(length: u64) -> Self {
        Self { length }
    }
}

impl fmt::Display for Redirected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.as_u16();
        write!(f, "upstream answered {status}, which is not followed")
    }
}

impl fmt::Display for IncompleteJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.length;
        write!(f, "answer of {length} bytes is no whole JSON document")
    }
}

impl Error for Redirected {}

impl Error for IncompleteJson {}

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

/// Every candidate that could serve a request has failed a while ago, and is
/// left alone: nobody was asked.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoolingDown {
    /// Each of them.
    pub candidates: Vec<Cooling>,
}

/// A candidate that is left alone.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cooling {
    /// Its label.
    pub candidate: String,
    /// For how long yet.
    pub left: Duration,
    /// What it failed with.
    pub class: FailureClass,
}

impl CoolingDown {
    /// How long until the first of them may be asked again.
    #[must_use]
    pub fn soonest(&self) -> Duration {
        self.first().map(|first| first.left).unwrap_or_default()
    }

    /// What the one failed with that may be asked again first.
    pub(crate) fn class(&self) -> FailureClass {
        self.first().map_or(FailureClass::Server, |it| it.class)
    }

    fn first(&self) -> Option<&Cooling> {
        self.candidates.iter().min_by_key(|cooling| cooling.left)
    }
}

impl fmt::Display for CoolingDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every candidate is left alone after a failure: ")?;
        for (at, cooling) in self.candidates.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let Cooling {
                candidate, class, ..
            } = cooling;
            let seconds = seconds(cooling.left);
            write!(f, "{comma}{candidate} for {seconds} s more ({class})")?;
        }
        Ok(())
    }
}

impl Error for CoolingDown {}

/// Whole seconds, never too few.
pub(crate) const fn seconds(left: Duration) -> u64 {
    left.as_secs() + (left.subsec_nanos() > 0) as u64
}

/// The upstream could not be reached, or the connection to it broke.
///
/// Adapters wrap a client's connection errors in it; a bare
/// [`std::io::Error`] counts as one too.
#[derive(Debug)]
pub struct TransportError {
    source: BoxError,
}

impl TransportError {
    /// Marks `source` as a failure of the transport.
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
        }
    }

    /// Whether a failure of the transport stands in the chain of `error`.
    #[must_use]
    pub fn is_in(error: &(dyn Error + 'static)) -> bool {
        chain(error).any(|error| error.is::<Self>() || error.is::<std::io::Error>())
    }

    /// Whether the upstream refused the connection, so that nothing was sent.
    #[must_use]
    pub fn is_refused(error: &(dyn Error + 'static)) -> bool {
        let refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
        chain(error).any(|error| error.downcast_ref().is_some_and(refused))
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upstream transport failed: {}", self.source)
    }
}

impl Error for TransportError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
