//! The failed attempts of a call: as a list, in the error of the call, and in the log.

use std::{any::Any, error::Error, fmt, sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, StatusCode, response::Parts};

use super::denial::Denial;
use crate::{
    error::{BoxError, chain},
    llm::{
        cut,
        dialect::Usage,
        failure::{Failure, FailureClass},
    },
    registry::Owner,
    run::{FailedAttemptList, Run, RunId, TerminalReason, Terminated},
    supervise::ResponseMarks,
};

/// The most bytes of an attempt's message that are kept.
const MAX_MESSAGE: usize = 256;

/// The headers in which upstreams name a request: OpenAI's, Anthropic's, and AWS's.
static REQUEST_IDS: [HeaderName; 3] = [
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("request-id"),
    HeaderName::from_static("x-amzn-requestid"),
];

/// The longest request id that is kept, in bytes. A longer one is left out: a part of an id names
/// nothing.
const MAX_REQUEST_ID: usize = 128;

/// One attempt that has ended, or was classified as failed.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptSummary {
    /// The id of the attempt's run.
    pub run: RunId,
    /// The owner of the run; `None` if the run was never given to a registry.
    pub owner: Option<Owner>,
    /// The label of the attempt's candidate; `None` if no fallback layer chose one.
    pub candidate: Option<Arc<str>>,
    /// The terminal reason of the attempt; `Completed` if it served the call to the end.
    pub reason: TerminalReason,
    /// The class of the attempt's failure; `None` for an attempt that did not fail.
    pub class: Option<FailureClass>,
    /// The [signal](Failure::signal) that decided the class; empty for a failure without an answer.
    pub signal: Arc<str>,
    /// The status of the answer, if the attempt served the call or failed by that status. For any
    /// other failure, the status in the error's code; `None` if there is none.
    pub status: Option<StatusCode>,
    /// The upstream's error message, or the error instead of an answer; at most 256 bytes, empty
    /// if there is neither.
    ///
    /// The message is for the program: an error may name internal hosts.
    pub message: String,
    /// The upstream's own id of the request, from the head of its answer.
    pub request_id: Option<Arc<str>>,
    /// The time from the attempt's opening until its answer served the call: for a stream, until its
    /// first content. `None` if it did not.
    pub served_after: Option<Duration>,
    /// How long the attempt lasted.
    pub duration: Duration,
    /// The tokens that the upstream reported for the attempt.
    pub usage: Option<Usage>,
}

impl AttemptSummary {
    /// Describes an attempt that has not ended yet.
    pub(super) fn begun(candidate: Option<&str>, attempt: &Run) -> Self {
        Self {
            run: attempt.id(),
            owner: attempt.owner(),
            candidate: candidate.map(Into::into),
            reason: TerminalReason::Aborted,
            class: None,
            signal: Arc::default(),
            status: None,
            message: String::new(),
            request_id: None,
            served_after: None,
            duration: Duration::ZERO,
            usage: None,
        }
    }

    /// Describes a failed `attempt`: `answer` is the head of its answer, or its error.
    pub(super) fn failed(
        candidate: Option<&str>,
        failure: &Failure,
        answer: Result<&Parts, &BoxError>,
        attempt: &Run,
    ) -> Self {
        let message = match answer {
            Err(error) if failure.message.is_empty() => &error.to_string(),
            _ => &failure.message,
        };
        // A clock of the attempt, or the program, may have ended it.
        let end = attempt.node().own_end().map(|end| end.reason.clone());
        let end = end.filter(|reason| !matches!(reason, TerminalReason::Failed(_)));
        let marks = || answer.ok()?.extensions.get::<ResponseMarks>()?.usage();
        Self {
            reason: end.unwrap_or(TerminalReason::Failed(failure.class)),
            class: Some(failure.class),
            signal: failure.signal().into(),
            status: failure.status,
            message: cut(message, MAX_MESSAGE).to_owned(),
            duration: attempt.elapsed(),
            usage: attempt.usage().or_else(marks),
            request_id: answer.ok().and_then(|parts| request_id(&parts.headers)),
            ..Self::begun(candidate, attempt)
        }
    }
}

/// The upstream's own id of the request, from the head of its answer.
pub(super) fn request_id(headers: &HeaderMap) -> Option<Arc<str>> {
    let id = |name| headers.get(name)?.to_str().ok();
    let id = REQUEST_IDS.iter().find_map(id)?;
    (id.len() <= MAX_REQUEST_ID).then(|| id.into())
}

/// The failed attempts of a call, in order.
///
/// If an attempt failed, the list is an extension of the call's answer, good or failed, and of the
/// answer that [`TerminalResponseLayer`](crate::TerminalResponseLayer) makes of an error. Without
/// an answer, [`find`](Self::find) finds the list in the call's error.
///
/// ```
/// use tower_agent::{BoxError, attempt::FailedAttempts};
///
/// fn log<B>(result: &Result<http::Response<B>, BoxError>) {
///     let failed = match result {
///         Ok(answer) => answer.extensions().get(),
///         Err(error) => FailedAttempts::find(&**error),
///     };
///     if let Some(failed) = failed {
///         for attempt in failed.all() {
///             println!("{:?}: {:?}", attempt.candidate, attempt.class);
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailedAttempts {
    tried: Vec<AttemptSummary>,
    soonest: Option<Duration>,
    /// Why no attempt followed the last one: no repeat, and no move to another candidate.
    denied: [Option<Denial>; 2],
    /// The number of the call's node.
    call: u64,
}

impl FailedAttempts {
    /// Finds the failed attempts in a call's error, or in one of its sources.
    ///
    /// If an outer layer ended the call, its error has the failed attempts too.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let of_end = || {
            let list = Terminated::find(error)?.failed_attempts.as_deref()?;
            let tries: &Self = list.as_any().downcast_ref()?;
            Some(tries).filter(|tries| !tries.tried.is_empty())
        };
        Self::of_layer(error).or_else(of_end)
    }

    /// Finds the failed attempts that a retry or fallback layer has put around its error.
    pub(super) fn of_layer<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        chain(error).find_map(|error| Some(&error.downcast_ref::<FailedCall>()?.tries))
    }

    /// The failed attempts so far of the call that `own` belongs to; `None` if none has failed.
    pub(super) fn of(own: &Run) -> Option<Self> {
        let list = own.attempts().failed()?;
        list.as_any().downcast_ref().cloned()
    }

    /// Adds failed attempts to those of the call that `own` belongs to.
    pub(super) fn add(own: &Run, tried: &[AttemptSummary]) {
        Self::update(own, |tries| {
            tries.tried.extend_from_slice(tried);
            tries.denied = [None; 2];
        });
    }

    /// Stores why a layer makes no attempt after the last failed one; `moves` tells a layer that
    /// moves to other candidates from one that repeats.
    pub(super) fn deny(own: &Run, denied: Denial, moves: bool) {
        Self::update(own, |tries| tries.denied[usize::from(moves)] = Some(denied));
    }

    /// Forgets why inner layers made no other attempt: another one follows.
    pub(super) fn allow(own: &Run) {
        if Self::of(own).is_some_and(|tries| tries.denied != [None; 2]) {
            Self::update(own, |tries| tries.denied = [None; 2]);
        }
    }

    fn update(own: &Run, change: impl FnOnce(&mut Self)) {
        own.attempts().with_failed(|list| {
            let known = list.as_ref().and_then(|list| list.as_any().downcast_ref());
            let mut tries: Self = known.cloned().unwrap_or_default();
            tries.call = own.node().call_node().number();
            change(&mut tries);
            *list = Some(Arc::new(tries));
        });
    }

    /// Gives the end of an attempt, as the error of its call, the reasons why no other followed.
    pub(super) fn explain(own: &Run, mut error: BoxError) -> BoxError {
        if let Some(end) = error.downcast_mut::<Terminated>() {
            end.failed_attempts = own.attempts().failed();
        }
        error
    }

    /// Adds these attempts to those of the call of `own`, if another call made them.
    ///
    /// The inner service may have made another call. If it made the attempts in the same call, a
    /// layer further in has added them already.
    pub(super) fn merge(&self, own: &Run) {
        if self.call != own.node().call_node().number() {
            Self::add(own, &self.tried);
        }
    }

    /// All failed attempts of the call, the first one first.
    #[must_use]
    pub fn all(&self) -> &[AttemptSummary] {
        &self.tried
    }

    /// Why no other attempt followed the last one, in the words that the event `no further attempt`
    /// has for it: why it was not repeated, then why no other candidate was asked.
    ///
    /// Empty while another attempt may follow, and if the call was ended meanwhile.
    pub fn denied(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.denials().map(Denial::as_str)
    }

    /// The same in clauses for people; `None` if nothing denied another attempt.
    pub(crate) fn why_none_followed(&self) -> Option<String> {
        let clauses: Vec<_> = self.denials().map(Denial::clause).collect();
        (!clauses.is_empty()).then(|| clauses.join(", and "))
    }

    /// Why the last attempt was not repeated, if another reason denied a move after that.
    pub(super) fn not_repeated(&self) -> Option<Denial> {
        let mut denials = self.denials();
        let repeat = denials.next();
        repeat.filter(|_| denials.next().is_some())
    }

    fn denials(&self) -> impl Iterator<Item = Denial> + '_ {
        let [repeat, other] = self.denied;
        let repeat = repeat.filter(|_| repeat != other);
        repeat.into_iter().chain(other)
    }

    /// The time from the failed answer until the first cooldown of a suitable candidate ends.
    ///
    /// `None` if no candidate that could serve the request is in a cooldown. Only the list of a
    /// failed answer has this time.
    #[must_use]
    pub const fn soonest(&self) -> Option<Duration> {
        self.soonest
    }

    pub(super) const fn set_soonest(&mut self, soonest: Option<Duration>) {
        self.soonest = soonest;
    }

    /// Wraps the error of a call in one that carries the failed attempts; without any, the error
    /// stays as it is. `is_logged` says that the log has listed them.
    ///
    /// The wrapper of an inner layer is replaced.
    pub(super) fn wrap(own: &Run, error: BoxError, is_logged: bool) -> BoxError {
        let (inner, source) = Self::unwrap(error);
        if let Some(inner) = inner {
            inner.merge(own);
        }
        match Self::of(own) {
            None => source,
            Some(tries) => FailedCall {
                tries,
                source,
                is_logged,
            }
            .into(),
        }
    }

    /// Removes the wrapper of an inner layer from an error.
    pub(super) fn unwrap(error: BoxError) -> (Option<Self>, BoxError) {
        match error.downcast::<FailedCall>() {
            Ok(inner) => (Some(inner.tries), inner.source),
            Err(error) => (None, error),
        }
    }

    /// The label of the candidate that failed last.
    pub(super) fn last(&self) -> Option<&str> {
        self.tried.last()?.candidate.as_deref()
    }
}

/// Writes the attempts as the log has them: `"large" server 503, "small" transport`.
impl fmt::Display for FailedAttempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, tried) in self.tried.iter().enumerate() {
            f.write_str(if at > 0 { ", " } else { "" })?;
            if let Some(candidate) = &tried.candidate {
                // The name is quoted, so that it cannot look like another field.
                write!(f, "{candidate:?} ")?;
            }
            f.write_str(tried.class.map_or("", FailureClass::as_str))?;
            if let Some(status) = tried.status {
                write!(f, " {}", status.as_u16())?;
            }
        }
        Ok(())
    }
}

impl FailedAttemptList for FailedAttempts {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn denied_words(&self) -> Option<String> {
        let words: Vec<_> = self.denied().collect();
        (!words.is_empty()).then(|| words.join(", "))
    }

    fn why_none_followed(&self) -> Option<String> {
        Self::why_none_followed(self)
    }
}

/// The error of a call in which at least one attempt failed.
///
/// The source is the error of the last attempt, or the end of the call;
/// [`FailedAttempts::find`] finds the attempts.
#[derive(Debug)]
pub(super) struct FailedCall {
    pub(super) tries: FailedAttempts,
    source: BoxError,
    /// Whether a line of the log has listed the attempts.
    is_logged: bool,
}

/// Whether the error lists failed attempts that a line of the log has listed before.
pub(crate) fn is_logged(error: &(dyn Error + 'static)) -> bool {
    let failed = error.downcast_ref::<FailedCall>();
    failed.is_some_and(|failed| failed.is_logged)
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed attempts: {}", self.tries)?;
        match self.tries.denied_words() {
            Some(denied) => write!(f, "; none followed: {denied}"),
            None => Ok(()),
        }
    }
}

impl Error for FailedCall {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
