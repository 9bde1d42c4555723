//! Where entries are: by place, and by the hash of their key.

use std::{
    ops::{Index, IndexMut},
    time::Duration,
};

use slab::Slab;
use tokio::time::Instant;

use super::key::{EntryKey, Map};
use crate::run::{Identity, Place, Run};

/// Entries, each at a place of its own as long as it is there.
#[derive(Debug, Default)]
pub(super) struct SlabMap {
    all: Slab<RunEntry>,
    /// Where the newest of each key's hash is in there; the entry says where others of
    /// that hash are. A table of keys would be four times as large.
    by_hash: Map<u64, usize>,
}

#[derive(Debug)]
pub(super) struct RunEntry {
    pub(super) run: Run,
    pub(super) serial: u64,
    /// That of its key.
    pub(super) hash: u64,
    /// Another entry whose key has this hash.
    pub(super) same: Option<usize>,
    /// Somebody chose its id, and may come back with it.
    pub(super) named: bool,
    /// The idle limit of a run that was given its id; others end by themselves.
    pub(super) idle: Option<Duration>,
    /// When it is forgotten; none while it lives.
    pub(super) expires: Option<Instant>,
    /// It was idle for too long, and somebody is about to complete it.
    pub(super) retired: bool,
}

impl SlabMap {
    /// Answers where it is from now on. Its key must not be there.
    pub(super) fn insert(&mut self, mut entry: RunEntry) -> Place {
        let index = self.all.vacant_key();
        let serial = entry.serial;
        entry.same = self.by_hash.insert(entry.hash, index);
        self.all.insert(entry);
        Place { serial, index }
    }

    /// Removes the entry that is there.
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
