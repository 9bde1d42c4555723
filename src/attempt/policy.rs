//! The rules of the retry layer and of the fallback layer in the loop of attempts.

use std::{fmt::Debug, time::Duration};

use http::{Request, response::Parts};

use super::{
    budget::{Permit, RetryBudget},
    candidate::Candidate,
    denial::Denial,
    settle::CompletionObserver,
};
use crate::{
    body::{MAX_BODY, ReplayBody},
    error::BoxError,
    llm::{
        AfterFinish,
        failure::{Classifier, Failure},
    },
    run::{ErrorAllowance, ErrorKey, Run},
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

    /// As [`streams`](Self::streams), but cheap if the request does not.
    fn asks_for_stream(&self) -> bool {
        self.streams()
    }

    /// What the caller's request lets expect, after a while, once all choices of a chat stream have
    /// finished.
    fn after_finish(&self) -> AfterFinish;

    /// Whether an answer without content is a fault: the request has no stop sequences, and no
    /// limit of 0. Asked only if an answer seems to have none.
    fn asks_for_content(&self) -> bool {
        false
    }

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
