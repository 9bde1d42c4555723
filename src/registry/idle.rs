use std::time::Duration;

use tokio::time::Instant;

use super::RunRegistry;
use crate::run::{Node, NodeState, ResetOn};

/// When the run will have been idle for `limit`, if nothing happens until then.
pub(super) fn idle_until(node: &Node<NodeState>, limit: Duration, now: Instant) -> Instant {
    let epoch = node.payload.epoch;
    let before = now.saturating_duration_since(epoch);
    let before = before.saturating_sub(RunRegistry::SAFETY);
    let last = Duration::from_nanos(node.last(ResetOn::AnyByte)).max(node.opened());
    // What was over long ago and was never cleaned up is no work.
    let since = match node.is_idle() || node.is_left_over(before) {
        true => epoch.checked_add(last).unwrap_or(now),
        false => now,
    };
    since.checked_add(limit).unwrap_or(now + RunRegistry::IDLE)
}
