use std::sync::Arc;

use http::StatusCode;

use crate::upstream::{Failure, FailureClass};

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
pub struct Tries(Vec<Tried>);

impl Tries {
    /// All that failed, the first one first.
    #[must_use]
    pub fn all(&self) -> &[Tried] {
        &self.0
    }

    pub(super) fn push(&mut self, candidate: Option<&str>, failure: &Failure) {
        self.0.push(Tried {
            candidate: candidate.map(Into::into),
            class: failure.class,
            status: failure.status,
        });
    }

    /// What a layer further in tried for one candidate.
    pub(super) fn append(&mut self, inner: &Self) {
        self.0.extend_from_slice(&inner.0);
    }

    /// Who failed last.
    pub(super) fn last(&self) -> Option<&str> {
        self.0.last()?.candidate.as_deref()
    }
}
