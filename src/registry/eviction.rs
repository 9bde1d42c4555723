//! When the registry forgets an ended run, and when an idle run completes.

use std::time::Duration;

use tokio::time::Instant;

use super::RunRegistry;
use crate::run::{End, LimitKind, Node, NodeState, ReasonClass, ResetOn};

/// The rank of an ended run; the registry evicts runs of rank 0 first.
///
/// Rank 0: runs that completed, that had a generated id, that another run's end ended, or that
/// ended by a deadline or silence limit that their caller announced. Rank 2: other runs that a limit or a clock ended, so that a
/// flood of new ids does not revive an old id. Rank 1: the rest.
pub(super) fn rank(end: Option<&End>, named: bool) -> usize {
    // A caller can cause these ends at no cost, so they must not evict other runs: a deadline
    // that the caller announced, or the longest silence for which the caller waits.
    let is_ours = |end: &&End| !matches!(end.limit_kind, LimitKind::Announced | LimitKind::Unheard);
    let lasting = end.filter(|_| named).filter(is_ours);
    match lasting.map(|end| end.reason.class()) {
        None | Some(ReasonClass::Success) => 0,
        Some(ReasonClass::Limit | ReasonClass::Timeout) => 2,
        Some(_) => 1,
    }
}

/// The time at which a run without work reaches its idle limit.
///
/// The limit counts from the latest of the run's opening, its last sign of life and the end of its
/// last pause. Later work, signs of life and pauses move the time. For a run with work in progress,
/// or in a pause, the result is `now` plus `limit`, when the caller looks again. If the sum is
/// beyond the range of `Instant`, the result is `now` plus [`RunRegistry::IDLE`].
pub(super) fn idle_until(node: &Node<NodeState>, limit: Duration, now: Instant) -> Instant {
    let epoch = node.started();
    let before = now.saturating_duration_since(epoch);
    let before = before.saturating_sub(RunRegistry::SAFETY);
    let last = node.last(ResetOn::AnyByte).max(node.last_pause());
    let last = Duration::from_nanos(last).max(node.opened());
    // Work that was over long ago and was never dropped does not keep a run from being idle.
    let has_work = !node.is_idle() && !node.is_left_over(before);
    let until = match !has_work && !node.holds_pause() {
        true => epoch.checked_add(last).unwrap_or(now).checked_add(limit),
        // Later than `now`, also for a run that completes as soon as it is idle.
        false => now.checked_add(limit.max(Duration::from_nanos(1))),
    };
    until.unwrap_or(now + RunRegistry::IDLE)
}
