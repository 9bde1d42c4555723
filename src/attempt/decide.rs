//! Asks, in one order, whether another attempt may follow; counts those that are admitted.

use std::time::Duration;

use super::{
    budget::{NextAttempt, Permit},
    policy::{AttemptPolicy, Denial},
};
use crate::{
    llm::failure::Failure,
    run::{ErrorAllowance, Run, TaskId, TerminalReason, nanos},
};

/// A try has failed, nothing of it was handed on, and another is thought of.
#[derive(Debug)]
pub(super) struct RetryQuery<'a> {
    /// The node of the layer that asks.
    pub(super) own: &'a Run,
    pub(super) failure: &'a Failure,
    /// What counting it said, if every failure is counted.
    pub(super) verdict: ErrorAllowance,
    /// How many tries the call has made.
    pub(super) attempts: u32,
    pub(super) now: Duration,
}

/// Leave to make another try, after a wait.
#[derive(Debug)]
pub(super) struct RetryPermit {
    pub(super) wait: Duration,
    /// What was paid for it; given back if it is never made.
    pub(super) grant: Option<Permit<'static>>,
}

/// The first question: whether anybody wants another try. Nobody does whose
/// caller is gone, though the try that is under way may go on.
///
/// The clocks, not only what is stored: an attempt whose deadline coincides
/// with its run's would otherwise be tried again for a run that is over.
pub(super) fn is_wanted(own: &Run, now: Duration, task: TaskId) -> bool {
    own.node().check(now, task).is_ok() && !own.node().is_closing()
}

/// The one place where another try is allowed, whether it is a repeat or
/// another model: once somebody [wants](is_wanted) it, whether the failure is
/// worth it, and last who pays for it.
///
/// That nothing is committed needs no question: who asks has not handed on a
/// byte, and after the commit there is nobody left to ask.
pub(super) fn decide<C: AttemptPolicy>(
    chain: &mut C,
    asked: &RetryQuery<'_>,
) -> Result<RetryPermit, Denial> {
    let RetryQuery {
        own,
        failure,
        verdict,
        attempts,
        now,
    } = *asked;
    if own.had_side_effects() {
        return Err(Denial::SideEffects);
    }
    let wait = chain.worth(failure)?;
    let least = wait.saturating_add(chain.budget().settings().min_attempt);
    let enough = nanos(now.saturating_add(least));
    if own.node().next_deadline().is_some_and(|at| at < enough) {
        return Err(Denial::TimeLeft);
    }
    chain.left(failure)?;
    let next = NextAttempt {
        run: own,
        attempt: attempts + 1,
        candidate: chain.next_subject(),
        after: failure.class,
    };
    if !chain.budget().allows(&next) {
        return Err(Denial::Hook);
    }
    let grant = chain.spend(failure, verdict)?;
    Ok(RetryPermit { wait, grant })
}

/// A try that may start as soon as the service is ready.
#[derive(Debug)]
pub(super) struct Admitted {
    // None once it has started: what watches it settles it then.
    attempt: Option<Run>,
    grant: Option<Permit<'static>>,
}

impl Admitted {
    pub(super) const fn new(attempt: Run, grant: Option<Permit<'static>>) -> Self {
        let attempt = Some(attempt);
        Self { attempt, grant }
    }

    pub(super) const fn attempt(&self) -> Option<&Run> {
        self.attempt.as_ref()
    }

    /// It starts: what was paid for it is spent.
    pub(super) fn begin(mut self) {
        if let Some(grant) = self.grant.take() {
            grant.spend();
        }
        self.attempt = None;
    }

    /// It failed before it started.
    pub(super) fn fail(mut self, reason: TerminalReason) {
        if let Some(attempt) = self.attempt.take() {
            attempt.settle(reason);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(attempt) = &self.attempt {
            attempt.settle(TerminalReason::Aborted);
        }
    }
}
