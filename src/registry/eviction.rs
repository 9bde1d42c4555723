use std::collections::VecDeque;

use crate::run::Place;
use crate::run::{End, LimitKind, ReasonClass};

/// Ended runs in the order of their ends, over all shards. Some may be forgotten already.
#[derive(Debug, Default)]
pub(super) struct EvictionQueue {
    /// The ended runs by rank; rank 0 is evicted first. Rank 0: runs that completed, had a
    /// generated id, or ended by a deadline of their caller; only a waiter needs their end. Rank 1:
    /// runs with another end. Rank 2: runs that a limit or a clock ended, so that a flood of new
    /// ids does not revive an old id.
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
        // A caller can cause these ends at no cost, so they must not evict other runs: an id
        // that no observer knew before the end, or a time that the caller announced.
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
