//! Decides, in one order of questions, whether another attempt of a call follows a failed one.

use std::time::Duration;

use super::{
    budget::{NextAttempt, Permit},
    denial::Denial,
    policy::AttemptPolicy,
    settle::SettleGuard,
};
use crate::{
    llm::failure::Failure,
    run::{ErrorAllowance, Run, TaskId, nanos},
};

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
    if own.attempts().had_side_effects() {
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
        attempt: own.attempts().made() + 1,
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
