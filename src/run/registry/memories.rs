use std::collections::VecDeque;

/// Ended runs in the order of their ends, over all parts of the registry. Some of
/// them may have been forgotten meanwhile.
#[derive(Debug, Default)]
pub(super) struct Memories {
    /// That they ended is news for whoever waits, and no more.
    completed: VecDeque<Memory>,
    /// What keeps an id ended.
    tombstones: VecDeque<Memory>,
}

/// Where an ended run is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) shard: usize,
    pub(super) serial: u64,
}

impl Memories {
    pub(super) fn push(&mut self, memory: Memory, completed: bool) {
        match completed {
            true => self.completed.push_back(memory),
            false => self.tombstones.push_back(memory),
        }
    }

    /// The one to be forgotten first.
    pub(super) fn pop(&mut self) -> Option<Memory> {
        let completed = self.completed.pop_front();
        completed.or_else(|| self.tombstones.pop_front())
    }

    pub(super) fn len(&self) -> usize {
        self.completed.len() + self.tombstones.len()
    }

    pub(super) fn retain(&mut self, known: impl Fn(&Memory) -> bool) {
        self.completed.retain(&known);
        self.tombstones.retain(&known);
    }
}
