use std::{fmt, sync::Arc, time::Duration};

use http::StatusCode;

use crate::llm::failure::{Failure, FailureClass};

/// One attempt that failed.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// The label of the attempt's candidate; `None` if no fallback layer chose one.
    pub candidate: Option<Arc<str>>,
    /// The class of the attempt's failure.
    pub class: FailureClass,
    /// The status of the attempt's answer, if there was one.
    pub status: Option<StatusCode>,
}

/// The failed attempts of a call, in order.
///
/// The list is an extension of the failed answer that the caller gets when no attempt follows.
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
    /// All failed attempts of the call, the first one first.
    #[must_use]
    pub fn all(&self) -> &[Tried] {
        &self.tried
    }

    /// The time from the failed answer until the first cooldown of a suitable candidate ends.
    ///
    /// `None` if no candidate that could serve the request is in a cooldown.
    #[must_use]
    pub const fn soonest(&self) -> Option<Duration> {
        self.soonest
    }

    pub(super) const fn set_soonest(&mut self, soonest: Option<Duration>) {
        self.soonest = soonest;
    }

    pub(super) fn push(&mut self, candidate: Option<&str>, failure: &Failure) {
        self.tried.push(Tried {
            candidate: candidate.map(Into::into),
            class: failure.class,
            status: failure.status,
        });
    }

    /// Adds the failed attempts that a layer further in made within one attempt of this layer.
    pub(super) fn append(&mut self, inner: &Self) {
        self.tried.extend_from_slice(&inner.tried);
    }

    /// The failed attempts as a log field: `"large" server 503, "small" transport`.
    pub(super) const fn listed(&self) -> TriesList<'_> {
        TriesList(self)
    }

    /// The label of the candidate that failed last.
    pub(super) fn last(&self) -> Option<&str> {
        self.tried.last()?.candidate.as_deref()
    }
}

/// Prints the failed attempts of a call as a log field.
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
