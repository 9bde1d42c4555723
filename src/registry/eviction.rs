//! The queues of the registry: ended runs in the order of their eviction, and entries by the time
//! of their next check.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use tokio::time::Instant;

use super::RunRegistry;
use crate::run::{End, LimitKind, Node, NodeState, Place, ReasonClass, ResetOn};

/// Ended runs by rank, and within a rank in the order of their ends, over all shards. Some may be
/// forgotten already.
#[derive(Debug, Default)]
pub(super) struct EvictionQueue {
    /// The ended runs by rank; rank 0 is evicted first. Rank 0: runs that completed, had a
    /// generated id, or ended because their caller gives up at that time; only a waiter needs their
    /// end. Rank 1: runs with another end. Rank 2: runs that a limit or a clock ended, so that a
    /// flood of new ids does not revive an old id.
    ranks: [VecDeque<EvictionEntry>; 3],
}

/// The location of an ended run in the registry.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvictionEntry {
    pub(super) shard: usize,
    pub(super) place: Place,
}

impl EvictionQueue {
    pub(super) fn push(&mut self, entry: EvictionEntry, end: Option<&End>, named: bool) {
        // A caller can cause these ends at no cost, so they must not evict other runs: a deadline
        // that the caller announced, or the longest silence for which the caller waits.
        let theirs = |end: &&End| !matches!(end.measure, LimitKind::Announced | LimitKind::Unheard);
        let lasting = end.filter(|_| named).filter(theirs);
        let rank = match lasting.map(|end| end.reason.class()) {
            None | Some(ReasonClass::Success) => 0,
            Some(ReasonClass::Limit | ReasonClass::Timeout) => 2,
            Some(_) => 1,
        };
        self.ranks[rank].push_back(entry);
    }

    /// Removes and answers the run that is evicted first.
    pub(super) fn pop(&mut self) -> Option<EvictionEntry> {
        self.ranks.iter_mut().find_map(VecDeque::pop_front)
    }

    pub(super) fn len(&self) -> usize {
        self.ranks.iter().map(VecDeque::len).sum()
    }

    pub(super) fn retain(&mut self, mut known: impl FnMut(&EvictionEntry) -> bool) {
        for rank in &mut self.ranks {
            rank.retain(&mut known);
        }
    }
}

/// The times at which entries are due for a check, earliest first. Mostly each pushed time is later
/// than the one before: such times stand in a queue, which costs less than a heap.
#[derive(Debug, Default)]
pub(super) struct TimerQueue {
    in_order: VecDeque<(Instant, Place)>,
    others: BinaryHeap<Reverse<(Instant, Place)>>,
}

impl TimerQueue {
    pub(super) fn push(&mut self, at: Instant, place: Place) {
        if self.in_order.back().is_none_or(|(last, _)| *last <= at) {
            self.in_order.push_back((at, place));
        } else {
            self.others.push(Reverse((at, place)));
        }
    }

    /// The earliest time in the queue; `None` if the queue is empty.
    pub(super) fn next(&self) -> Option<Instant> {
        let first = self.in_order.front().map(|(at, _)| *at);
        let other = self.others.peek().map(|Reverse((at, _))| *at);
        first.into_iter().chain(other).min()
    }

    /// Removes and answers the entry with the earliest time, if that time has come.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Place> {
        if self.in_order.front().is_some_and(|(at, _)| *at <= now) {
            return self.in_order.pop_front().map(|(_, place)| place);
        }
        let Reverse((at, place)) = *self.others.peek()?;
        if at > now {
            return None;
        }
        self.others.pop();
        Some(place)
    }

    pub(super) fn len(&self) -> usize {
        self.in_order.len() + self.others.len()
    }

    pub(super) fn retain(&mut self, knows: impl Fn(Place) -> bool) {
        self.in_order.retain(|(_, place)| knows(*place));
        self.others.retain(|Reverse((_, place))| knows(*place));
    }
}

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
