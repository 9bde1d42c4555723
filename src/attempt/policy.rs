//! What the retry layer and the fallback layer tell the loop of attempts.

use std::{fmt::Debug, time::Duration};

use http::{Request, response::Parts};

use super::budget::{Permit, RetryBudget};
use crate::{
    body::ReplayBody,
    error::BoxError,
    llm::failure::{Classifier, Failure},
    run::{ErrorAllowance, ErrorKey, Run, TerminalReason},
};

/// What comes after one another in a call: the part in which repeating and
/// falling back differ.
pub trait AttemptPolicy {
    /// Whether another try goes to another candidate.
    const MOVES: bool;

    /// Takes the request, whole, before the first try.
    ///
    /// # Errors
    ///
    /// If it cannot be sent to anybody.
    fn begin(&mut self, own: &Run, request: Request<ReplayBody>) -> Result<(), BoxError>;

    /// A try is about to be made: it may be given limits, which also hold while
    /// the service is not ready for it.
    fn limit(&self, attempt: &Run) {
        let _ = attempt;
    }

    /// The request of the try that is due.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    fn request(&mut self, attempt: &Run) -> Result<Request<ReplayBody>, BoxError>;

    /// How long a try may be held before it counts as committed, from its start.
    fn hold(&self) -> Option<Duration> {
        None
    }

    /// Whether the request asks for a stream.
    fn streams(&self) -> bool;

    /// Whether the candidate's word about the run counts.
    fn trusts(&self) -> bool;

    /// Whether the candidate has an upstream of its own: what comes from there is
    /// an answer of a model, or a failure.
    fn is_elsewhere(&self) -> bool;

    /// The model or candidate that was tried, for people and error keys.
    fn subject(&self) -> Option<&str>;

    /// The one that [`left`](Self::left) found.
    fn next_subject(&self) -> Option<&str> {
        self.subject()
    }

    fn budget(&self) -> &RetryBudget;

    /// How answers are judged.
    fn judgement(&self) -> &Classifier;

    /// Whether the failure is worth another try; how long to wait for it.
    fn worth(&mut self, failure: &Failure) -> Result<Duration, Denial>;

    /// Whether there is another try to make; nothing is moved on yet.
    fn left(&mut self, failure: &Failure) -> Result<(), Denial>;

    /// Pays for the try that [`left`](Self::left) found, and moves on to it.
    fn spend(
        &mut self,
        failure: &Failure,
        verdict: ErrorAllowance,
    ) -> Result<Option<Permit<'static>>, Denial>;

    /// The candidate of a try has failed: it was asked, and neither was the try
    /// given up nor did something on this side of it break.
    fn failed(&mut self, failure: &Failure) {
        let _ = failure;
    }

    /// A try serves the call: who wants to know what it comes to.
    fn serves(&self, attempt: &Run) -> Option<Box<dyn Serving>> {
        let _ = attempt;
        None
    }

    /// How long until the first may be asked that is left alone, if any is.
    fn soonest(&self) -> Option<Duration> {
        None
    }

    /// What the failure is counted as.
    fn key(&self, failure: &Failure) -> ErrorKey {
        ErrorKey::new(self.subject().unwrap_or_default(), words(failure))
    }

    /// An answer is handed on.
    fn answered(&self, answer: &mut Parts) {
        let _ = answer;
    }

    /// No other try follows: frees what was kept for one.
    fn release(&mut self);
}

/// Wants to know what a try comes to that serves a call.
pub trait Serving: Send + Sync + Debug {
    /// It ended by itself, for this reason.
    fn over(self: Box<Self>, reason: &TerminalReason);
}

/// What tells a failure from another: the upstream's words, or their kind.
pub(crate) fn words(failure: &Failure) -> &str {
    if failure.message.is_empty() {
        failure.class.as_str()
    } else {
        &failure.message
    }
}

/// Why no other try follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Another tower-agent, which is trusted, said that this run is over.
    Terminal,
    /// What failed would fail again.
    Class,
    /// The request is marked: what it did must not be done twice.
    SideEffects,
    /// Too many attempts of the run were silent, one after another.
    Idle,
    /// The upstream asked to wait for longer than is allowed.
    RetryAfter,
    /// The time that is left is not enough for another try.
    TimeLeft,
    /// Every try or candidate was used.
    Spent,
    /// Those that are left are left alone: they failed a while ago.
    Cooldown,
    /// The program's hook refused.
    Hook,
    /// The shared budget of the candidate is used up.
    Bucket,
    /// The same error came back too often.
    Key,
    /// The run made too many errors.
    Run,
}

impl Denial {
    /// One word, for logs and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Terminal => "terminal",
            Self::Class => "class",
            Self::SideEffects => "side_effects",
            Self::Idle => "idle",
            Self::RetryAfter => "retry_after",
            Self::TimeLeft => "time_left",
            Self::Spent => "spent",
            Self::Cooldown => "cooldown",
            Self::Hook => "hook",
            Self::Bucket => "bucket",
            Self::Key => "per_error_key",
            Self::Run => "per_run",
        }
    }
}

/// In a request: what it did has effects that must not be had twice. The call is
/// neither repeated nor moved to another candidate once it failed.
///
/// ```
/// use tower_agent::attempt::SideEffects;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(SideEffects);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideEffects;
