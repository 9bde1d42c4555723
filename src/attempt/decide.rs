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

/// Permission to make another attempt, after a wait.
#[derive(Debug)]
pub(super) struct RetryPermit {
    pub(super) wait: Duration,
    /// The budget's permit, which gives the repeat back if the attempt never starts.
    pub(super) permit: Option<Permit<'static>>,
}

/// Whether the node may still start attempts: it has not ended, and is not closing.
///
/// The function compares the clocks and not only the stored end: if the deadlines of an
/// attempt and of its run coincide, the attempt fails first, and no other may follow in a
/// run that is over.
pub(super) fn is_wanted(own: &Run, now: Duration, task: TaskId) -> bool {
    own.node().check(now, task).is_ok() && !own.node().is_closing()
}

/// Decides whether another attempt follows, as a repeat or at another model.
///
/// The caller has asked [`is_wanted`]. The commit needs no question: before it no byte of
/// the attempt has been handed on, and after it this function is not called.
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
        attempt: own.tries() + 1,
        candidate: policy.next_subject(),
        after: failure.class,
    };
    if !policy.settings().budget.allows(&next) {
        return Err(Denial::Hook);
    }
    let permit = policy.take_next(failure, allowance)?;
    Ok(RetryPermit { wait, permit })
}

/// An attempt that starts as soon as the service is ready.
#[derive(Debug)]
pub(super) struct Admitted {
    pub(super) attempt: Run,
    permit: Option<Permit<'static>>,
    /// Whether a drop settles the attempt's node; a started attempt settles by its call.
    settles: bool,
}

impl Admitted {
    pub(super) const fn new(attempt: Run, permit: Option<Permit<'static>>) -> Self {
        Self {
            attempt,
            permit,
            settles: true,
        }
    }

    /// Spends the attempt's permit, as the attempt starts.
    pub(super) fn begin(mut self) {
        if let Some(permit) = self.permit.take() {
            permit.spend();
        }
        self.settles = false;
    }

    /// Settles the attempt for `reason`, as it failed before it started.
    pub(super) fn fail(mut self, reason: TerminalReason) {
        self.settles = false;
        self.attempt.settle(reason);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if self.settles {
            self.attempt.settle(TerminalReason::Aborted);
        }
    }
}
