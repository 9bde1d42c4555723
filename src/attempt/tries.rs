use std::{error::Error, fmt, sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};

use crate::{
    error::{BoxError, chain},
    llm::{
        cut,
        dialect::Usage,
        failure::{Failure, FailureClass},
    },
    run::Run,
};

/// The most bytes of an attempt's message that are kept.
const MAX_MESSAGE: usize = 256;

/// The headers in which upstreams name a request: OpenAI's, Anthropic's, and AWS's.
const REQUEST_IDS: [&str; 3] = ["x-request-id", "request-id", "x-amzn-requestid"];

/// The longest request id that is kept; a longer one is left out, as a part of it names nothing.
const MAX_REQUEST_ID: usize = 128;

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
    /// The upstream's error message, or the error in place of an answer; at most 256 bytes, empty
    /// if there is neither.
    ///
    /// The message is for the program: an error may name internal hosts.
    pub message: String,
    /// The upstream's own id of the request, from the head of its answer.
    pub request_id: Option<Arc<str>>,
    /// How long the attempt lasted.
    pub duration: Duration,
    /// The tokens that the upstream reported for the attempt.
    pub usage: Option<Usage>,
}

impl Tried {
    /// Describes a failed `attempt`: `answer` is the head of its answer, or its error.
    pub(super) fn new(
        candidate: Option<&str>,
        failure: &Failure,
        answer: Result<&HeaderMap, &BoxError>,
        attempt: &Run,
    ) -> Self {
        let message = match answer {
            Err(error) if failure.message.is_empty() => &error.to_string(),
            _ => &failure.message,
        };
        let id = |name| answer.ok()?.get(name)?.to_str().ok();
        let id = REQUEST_IDS.into_iter().find_map(id);
        Self {
            candidate: candidate.map(Into::into),
            class: failure.class,
            status: failure.status,
            message: cut(message, MAX_MESSAGE).to_owned(),
            request_id: id.filter(|id| id.len() <= MAX_REQUEST_ID).map(Into::into),
            duration: attempt.elapsed(),
            usage: attempt.usage(),
        }
    }
}

/// The failed attempts of a call, in order.
///
/// The list is an extension of each answer that follows a failed attempt, good or failed; without
/// an answer, [`find`](Self::find) finds it in the call's error.
///
/// ```
/// use tower_agent::{BoxError, attempt::Tries};
///
/// fn log<B>(result: &Result<http::Response<B>, BoxError>) {
///     let tries = match result {
///         Ok(answer) => answer.extensions().get(),
///         Err(error) => Tries::find(&**error),
///     };
///     if let Some(tries) = tries {
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
    /// Finds the failed attempts in a call's error, or in one of its sources.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        chain(error).find_map(|error| Some(&error.downcast_ref::<AttemptsFailed>()?.tries))
    }

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

    pub(super) fn push(&mut self, tried: Tried) {
        self.tried.push(tried);
    }

    /// Adds the failed attempts that a layer further in made within one attempt of this layer.
    pub(super) fn append(&mut self, inner: &Self) {
        self.tried.extend_from_slice(&inner.tried);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tried.is_empty()
    }

    /// Wraps the error of a call in one that carries the failed attempts; without any, the error
    /// stays as it is.
    ///
    /// The wrapper of a layer further in is replaced.
    pub(super) fn wrap(mut self, error: BoxError) -> BoxError {
        let source = match error.downcast::<AttemptsFailed>() {
            Ok(inner) => {
                // The attempts of an inner layer whose run ended are not yet in this list.
                if !self.tried.ends_with(&inner.tries.tried) {
                    self.append(&inner.tries);
                }
                inner.source
            }
            Err(error) => error,
        };
        match self.is_empty() {
            true => source,
            false => AttemptsFailed {
                tries: self,
                source,
            }
            .into(),
        }
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

/// The error of a call in which at least one attempt failed.
///
/// The source is the error of the last attempt, or the end of the call; [`Tries::find`] finds the
/// attempts.
#[derive(Debug)]
pub(super) struct AttemptsFailed {
    pub(super) tries: Tries,
    source: BoxError,
}

impl fmt::Display for AttemptsFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed attempts: {}", self.tries.listed())
    }
}

impl Error for AttemptsFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
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
