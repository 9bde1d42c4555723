//! A slab of run entries, found by index or by the hash of their key.

use std::{
    ops::{Index, IndexMut},
    time::Duration,
};

use slab::Slab;
use tokio::time::Instant;

use super::key::{EntryKey, Map};
use crate::run::{Identity, Place, Run};

/// A slab of run entries with an index by the hash of their keys.
#[derive(Debug, Default)]
pub(super) struct SlabMap {
    all: Slab<RunEntry>,
    /// The index of the newest entry of each hash; `RunEntry::same` leads to the others. A map
    /// by key would be four times as large.
    by_hash: Map<u64, usize>,
}

#[derive(Debug)]
pub(super) struct RunEntry {
    pub(super) run: Run,
    pub(super) serial: u64,
    /// The hash of the run's key, its owner and id.
    pub(super) hash: u64,
    /// The index of the next entry with the same hash, if any.
    pub(super) same: Option<usize>,
    /// Whether the program or a request chose the run's id, and may use the id again.
    pub(super) named: bool,
    /// The idle limit of the run; `None` if the run ends with its one call.
    pub(super) idle: Option<Duration>,
    /// When the registry forgets the ended run; `None` while the run lives.
    pub(super) expires: Option<Instant>,
    /// Whether the run was idle for too long or is unused; a thread is about to complete it.
    pub(super) retired: bool,
}

impl SlabMap {
    /// Inserts an entry with a key that has no entry, and answers the entry's location.
    pub(super) fn insert(&mut self, mut entry: RunEntry) -> Place {
        let index = self.all.vacant_key();
        let serial = entry.serial;
        entry.same = self.by_hash.insert(entry.hash, index);
        self.all.insert(entry);
        Place { serial, index }
    }

    /// Removes and answers the entry at this index.
    pub(super) fn remove(&mut self, index: usize) -> RunEntry {
        let entry = self.all.remove(index);
        let newest = self.by_hash.remove(&entry.hash);
        match newest.filter(|newest| *newest != index) {
            None => {
                if let Some(same) = entry.same {
                    self.by_hash.insert(entry.hash, same);
                }
            }
            Some(newest) => {
                self.by_hash.insert(entry.hash, newest);
                let mut next = Some(newest);
                while let Some(other) = next.and_then(|other| self.all.get_mut(other)) {
                    if other.same == Some(index) {
                        other.same = entry.same;
                    }
                    next = other.same;
                }
            }
        }
        entry
    }

    pub(super) fn entry(&self, key: &EntryKey) -> Option<&RunEntry> {
        self.find(key).map(|index| &self.all[index])
    }

    pub(super) fn find(&self, key: &EntryKey) -> Option<usize> {
        let mut next = self.by_hash.get(&key.hash()).copied();
        while let Some(index) = next {
            let entry = &self.all[index];
            let known = entry.identity();
            if known.is_some_and(|known| known.owner == key.owner && known.id == key.id) {
                return Some(index);
            }
            next = entry.same;
        }
        None
    }

    pub(super) fn at(&mut self, place: Place) -> Option<&mut RunEntry> {
        let entry = self.all.get_mut(place.index)?;
        (entry.serial == place.serial).then_some(entry)
    }

    pub(super) fn knows(&self, place: Place) -> bool {
        let entry = self.all.get(place.index);
        entry.is_some_and(|entry| entry.serial == place.serial)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &RunEntry> {
        self.all.iter().map(|(_, entry)| entry)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.all.len() + self.by_hash.len()
    }
}

impl Index<usize> for SlabMap {
    type Output = RunEntry;

    fn index(&self, index: usize) -> &RunEntry {
        &self.all[index]
    }
}

impl IndexMut<usize> for SlabMap {
    fn index_mut(&mut self, index: usize) -> &mut RunEntry {
        &mut self.all[index]
    }
}

impl RunEntry {
    pub(super) fn identity(&self) -> Option<&Identity> {
        self.run.node().payload.identity()
    }
}
