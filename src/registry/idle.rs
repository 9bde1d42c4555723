use std::time::Duration;

use tokio::time::Instant;

use super::RunRegistry;
use crate::run::{Node, NodeState, ResetOn};

/// The time at which the run's idle limit passes, if no work or sign of life comes before.
pub(super) fn idle_until(node: &Node<NodeState>, limit: Duration, now: Instant) -> Instant {
    let epoch = node.payload.epoch;
    let before = now.saturating_duration_since(epoch);
    let before = before.saturating_sub(RunRegistry::SAFETY);
    let last = Duration::from_nanos(node.last(ResetOn::AnyByte)).max(node.opened());
    // Work that was over long ago and was never dropped does not keep a run from being idle.
    let since = match node.is_idle() || node.is_left_over(before) {
        true => epoch.checked_add(last).unwrap_or(now),
        false => now,
    };
    since.checked_add(limit).unwrap_or(now + RunRegistry::IDLE)
}
