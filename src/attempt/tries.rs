use std::{fmt, sync::Arc, time::Duration};

use http::StatusCode;

use crate::llm::failure::{Failure, FailureClass};

/// One try that failed.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Its candidate, if it had one.
    pub candidate: Option<Arc<str>>,
    /// What it failed with.
    pub class: FailureClass,
    /// The status of its answer, if there was one.
    pub status: Option<StatusCode>,
}

/// Every try of a call that failed, in order: an extension of the answer that
/// is handed on in the end.
///
/// ```
/// use tower_agent::attempt::Tries;
///
/// fn log<B>(answer: &http::Response<B>) {
///     if let Some(tries) = answer.extensions().get::<Tries>() {
///         for tried in tries.all() {
///             println!("{:?}: {}", tried.candidate, tried.class);
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    tried: Vec<Tried>,
    soonest: Option<Duration>,
}

impl Tries {
    /// All that failed, the first one first.
    #[must_use]
    pub fn all(&self) -> &[Tried] {
        &self.tried
    }

    /// How long until the first candidate may be asked again that could serve
    /// the request and is left alone; `None` if none is.
    #[must_use]
    pub const fn soonest(&self) -> Option<Duration> {
        self.soonest
    }

    pub(super) const fn cool_until(&mut self, soonest: Option<Duration>) {
        self.soonest = soonest;
    }

    pub(super) fn push(&mut self, candidate: Option<&str>, failure: &Failure) {
        self.tried.push(Tried {
            candidate: candidate.map(Into::into),
            class: failure.class,
            status: failure.status,
        });
    }

    /// What a layer further in tried for one candidate.
    pub(super) fn append(&mut self, inner: &Self) {
        self.tried.extend_from_slice(&inner.tried);
    }

    /// All that failed for a log, as `"large" server 503, "small" transport`.
    pub(super) const fn listed(&self) -> TriesList<'_> {
        TriesList(self)
    }

    /// Who failed last.
    pub(super) fn last(&self) -> Option<&str> {
        self.tried.last()?.candidate.as_deref()
    }
}

/// The tries of a call as a line of a log has them.
pub(super) struct TriesList<'a>(&'a Tries);

impl fmt::Display for TriesList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, tried) in self.0.tried.iter().enumerate() {
            f.write_str(if at > 0 { ", " } else { "" })?;
            if let Some(candidate) = &tried.candidate {
                // Quoted, so that no name can look like another field.
                write!(f, "{candidate:?} ")?;
            }
            f.write_str(tried.class.as_str())?;
            if let Some(status) = tried.status {
                write!(f, " {}", status.as_u16())?;
            }
        }
        Ok(())
    }
}
