//! The decisions of the retry layer and of the fallback layer in the loop of attempts.
//!
//! `decide` asks, in one order, whether another attempt may follow. `Admitted` is an attempt that
//! was opened, and that starts once the service is ready.

use std::{fmt::Debug, time::Duration};

use http::{Request, response::Parts};

use super::{
    budget::{NextAttempt, Permit, RetryBudget},
    candidate::Candidate,
    settle::{CompletionObserver, SettleGuard},
};
use crate::{
    body::{MAX_BODY, ReplayBody},
    error::BoxError,
    llm::failure::{Classifier, Failure},
    run::{ErrorAllowance, ErrorKey, Run, TaskId, nanos},
};

/// The rules for the attempts of one call: their requests, and whether another one follows.
///
/// The retry layer repeats an attempt; the fallback layer moves to another candidate.
pub trait AttemptPolicy {
    /// Whether the policy moves the next attempt to another candidate instead of repeating.
    const MOVES: bool;

    /// The layer's settings for the attempts of a call.
    fn settings(&self) -> &AttemptSettings;

    /// Takes the call's whole request before the first attempt.
    ///
    /// # Errors
    ///
    /// If the request is invalid, or no upstream can serve it now.
    fn begin(&mut self, own: &Run, request: Request<ReplayBody>) -> Result<(), BoxError>;

    /// Sets limits on a new attempt; they also hold while the service becomes ready.
    fn limit(&self, _attempt: &Run) {}

    /// Makes the request of an attempt, with its number in the call as `x-attempt`.
    ///
    /// # Errors
    ///
    /// If the request cannot be made.
    fn request(&mut self, attempt: &Run, number: u32) -> Result<Request<ReplayBody>, BoxError>;

    /// Whether the caller's request asks for a stream.
    fn streams(&self) -> bool;

    /// The model that the caller's request names; `None` if it is not known.
    ///
    /// The span of the call records this model. The spans of attempts and error keys have it where
    /// there is no candidate.
    fn model(&self) -> Option<&str> {
        None
    }

    /// The candidate of the current attempt; `None` if no fallback layer chose one.
    fn current_candidate(&self) -> Option<&Candidate>;

    /// The label of the current candidate, for logs and error keys.
    fn subject(&self) -> Option<&str> {
        self.current_candidate().map(Candidate::label)
    }

    /// The label of the candidate that [`find_next`](Self::find_next) found.
    fn next_subject(&self) -> Option<&str> {
        self.subject()
    }

    /// The wait before another attempt. The method denies the attempt if the failure allows none,
    /// or the upstream asks for too long a wait.
    fn retry_delay(&mut self, failure: &Failure) -> Result<Duration, Denial>;

    /// Finds the next attempt or candidate, but does not switch to it. The result is a denial if
    /// none is left, or if all suitable candidates are in a cooldown.
    fn find_next(&mut self, failure: &Failure) -> Result<(), Denial>;

    /// Switches to the attempt that [`find_next`](Self::find_next) found, with the budget's permit
    /// if it is a repeat; a denial if a limit on errors or repeats is reached.
    fn take_next(
        &mut self,
        failure: &Failure,
        allowance: ErrorAllowance,
    ) -> Result<Option<Permit<'static>>, Denial>;

    /// Records that the upstream of the current candidate failed.
    ///
    /// The driver calls the method only if the attempt was sent to a candidate, the failure came
    /// from the upstream or the connection to it, and the layer's node still admits attempts.
    fn note_failure(&mut self, _failure: &Failure) {}

    /// Records that an attempt serves the call. Returns an observer that learns how the attempt
    /// ends, if the policy needs one.
    fn note_served(&self, _attempt: &Run) -> Option<Box<dyn CompletionObserver>> {
        None
    }

    /// The time until the first cooldown of a suitable candidate ends; `None` if there is no such
    /// cooldown.
    fn earliest_retry(&self) -> Option<Duration> {
        None
    }

    /// The key under which the failure is counted: the candidate or model, and the error.
    ///
    /// The key takes the error from the upstream's message; without a message, from the failure's
    /// class.
    fn key(&self, failure: &Failure) -> ErrorKey {
        let subject = self.subject().or_else(|| self.model());
        let error = match &*failure.message {
            "" => failure.class.as_str(),
            message => message,
        };
        ErrorKey::new(subject.unwrap_or_default(), error)
    }

    /// Rewrites the head of the answer that the caller gets.
    fn rewrite_answer(&self, _answer: &mut Parts) {}

    /// Frees the caller's request, as no attempt follows.
    fn release(&mut self);
}

/// The settings that the retry layer and the fallback layer share.
#[derive(Clone, Debug)]
pub struct AttemptSettings {
    pub(crate) budget: RetryBudget,
    pub(crate) classifier: Classifier,
    /// How long after its opening an attempt may hold its answer before it commits. `None` for no
    /// such limit.
    pub(crate) hold: Option<Duration>,
    /// The largest request body that is buffered, in bytes.
    pub(crate) max_body: usize,
}

impl AttemptSettings {
    pub(crate) const fn new(budget: RetryBudget) -> Self {
        Self {
            budget,
            classifier: Classifier::new(),
            hold: None,
            max_body: MAX_BODY,
        }
    }
}

/// The reason why no further attempt of a call follows a failed one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The failure allows no further attempt by this layer, for example by its class.
    Class,
    /// The call is marked as one with effects that must not happen twice: see [`SideEffects`].
    SideEffects,
    /// Too many attempts of the run in a row were silent.
    Idle,
    /// The upstream asked for too long a wait. The wait exceeds the budget's longest; or, while
    /// another candidate can serve, the base of the waits.
    RetryAfter,
    /// Too little time is left for the wait and an attempt.
    TimeLeft,
    /// No attempt, or no suitable candidate, is left.
    Spent,
    /// All suitable candidates are in a cooldown.
    Cooldown,
    /// The program's hook refused.
    Hook,
    /// The shared budget of the candidate is used up.
    Bucket,
    /// The same error occurred too often in the run.
    Key,
    /// The run made too many errors.
    Run,
}

impl Denial {
    /// The denial as one word, for logs and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
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

    /// The budget that refused another attempt; `None` if no budget did. For a layer that `moves`
    /// to other candidates, [`Spent`](Self::Spent) is no budget: no suitable candidate is left.
    #[cfg(feature = "metrics")]
    pub(crate) const fn budget(self, moves: bool) -> Option<&'static str> {
        match self {
            Self::Spent if moves => None,
            Self::Spent | Self::Bucket | Self::Key | Self::Run => Some(self.as_str()),
            _ => None,
        }
    }
}

/// An extension of a request that says that its effects must not happen twice.
///
/// After a failed attempt of a request with this extension, no layer makes another attempt.
///
/// ```
/// use tower_agent::attempt::SideEffects;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(SideEffects);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideEffects;

/// Permission to make another attempt, after a wait.
#[derive(Debug)]
pub(super) struct RetryPermit {
    pub(super) wait: Duration,
    /// The budget's permit, which gives the repeat back if the attempt never starts; `None` at a
    /// move to another candidate.
    pub(super) permit: Option<Permit<'static>>,
}

/// Whether the node may still start attempts: it has not ended, and is not closing.
///
/// The function checks the deadlines against `now`, and not only the stored end: if the deadlines
/// of an attempt and of its run coincide, the attempt fails first, and no other may follow in a run
/// that is over.
pub(super) fn is_wanted(own: &Run, now: Duration, task: TaskId) -> bool {
    own.node().check(now, task).is_ok() && !own.node().refuses_work()
}

/// Decides whether another attempt follows, as a repeat or at another candidate.
///
/// The caller has checked [`is_wanted`]. The function is never called after a commit, so no byte of
/// the failed attempt has reached the layer's caller.
pub(super) fn decide<C: AttemptPolicy>(
    policy: &mut C,
    own: &Run,
    failure: &Failure,
    allowance: ErrorAllowance,
) -> Result<RetryPermit, Denial> {
    let now = own.now();
    if own.had_side_effects() {
        return Err(Denial::SideEffects);
    }
    let wait = policy.retry_delay(failure)?;
    let least = wait.saturating_add(policy.settings().budget.settings().min_attempt);
    let enough = nanos(now.saturating_add(least));
    if own.node().next_deadline().is_some_and(|at| at < enough) {
        return Err(Denial::TimeLeft);
    }
    policy.find_next(failure)?;
    let next = NextAttempt {
        run: own,
        attempt: own.attempt_count() + 1,
        candidate: policy.next_subject(),
        after: failure.class,
    };
    if !policy.settings().budget.allows(&next) {
        return Err(Denial::Hook);
    }
    let permit = policy.take_next(failure, allowance)?;
    Ok(RetryPermit { wait, permit })
}

/// An attempt that starts as soon as the service is ready. A drop before settles its node as
/// aborted, and gives the repeat back.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) attempt: SettleGuard,
    pub(super) permit: Option<Permit<'static>>,
}
