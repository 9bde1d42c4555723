use std::collections::VecDeque;

use crate::run::Place;
use crate::run::{End, LimitKind, ReasonClass};

/// Ended runs in the order of their ends, over all parts of the registry. Some of
/// them may have been forgotten meanwhile.
#[derive(Debug, Default)]
pub(super) struct EvictionQueue {
    /// Those to be forgotten first come first: what completed, had no name of its own,
    /// or ended when its caller said, whose end is news for whoever waits and no
    /// more; what somebody ended; what a limit did, lest a flood
    /// of new ids brings an old one back.
    ranks: [VecDeque<EvictionEntry>; 3],
}

/// Where an ended run is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvictionEntry {
    pub(super) shard: usize,
    pub(super) place: Place,
}

impl EvictionQueue {
    pub(super) fn push(&mut self, memory: EvictionEntry, end: Option<&End>, named: bool) {
        // What costs a caller nothing to bring about must push nothing else out: an id
        // that nobody was told before its end, or a time that the caller announced.
        let theirs = |end: &&End| !matches!(end.measure, LimitKind::Announced | LimitKind::Unheard);
        let lasting = end.filter(|_| named).filter(theirs);
        let rank = match lasting.map(|end| end.reason.class()) {
            None | Some(ReasonClass::Success) => 0,
            Some(ReasonClass::Limit | ReasonClass::Timeout) => 2,
            Some(_) => 1,
        };
        self.ranks[rank].push_back(memory);
    }

    /// The one to be forgotten first.
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
