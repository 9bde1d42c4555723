//! The keys of runs and sessions, hashed once, and the map from a session to its runs.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
    sync::Arc,
};

use slab::Slab;

use crate::run::{Run, RunId};

/// The key of a run in the registry: its owner and its id, with their hash.
pub(super) type EntryKey = Hashed<RunName>;

/// The name of a session, with its hash, as a key.
pub(super) type Session = Hashed<Arc<str>>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RunName {
    pub(super) owner: u128,
    pub(super) id: RunId,
}

/// A value that callers choose, with its hash.
///
/// The hash is computed once, with a key that callers do not know, for all maps.
#[derive(Clone, Debug)]
pub(super) struct Hashed<T> {
    hash: u64,
    of: T,
}

/// A hash map with precomputed hashes as keys, or numbers that callers do not choose.
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// A hasher that spreads one number over all bits. Safe only for numbers that callers do not
/// choose.
#[derive(Debug, Default)]
pub(super) struct Spread(u64);

impl<T: Hash> Hashed<T> {
    pub(super) fn new(of: T, hasher: &impl BuildHasher) -> Self {
        let hash = hasher.hash_one(&of);
        Self { hash, of }
    }

    /// Makes a hashed value from a value and its hash, which the caller has computed before.
    pub(super) const fn known(hash: u64, of: T) -> Self {
        Self { hash, of }
    }

    pub(super) const fn hash(&self) -> u64 {
        self.hash
    }

    /// The number of the part, of `parts`, in which the value is stored. The part is computed from
    /// other bits than the slot in a part's own maps.
    pub(super) fn part(&self, parts: usize) -> usize {
        part(self.hash, parts)
    }
}

/// The number of the part, of `parts`, in which a value with this hash is stored.
pub(super) fn part(hash: u64, parts: usize) -> usize {
    // The remainder is smaller than the number of parts, so it fits a `usize`.
    usize::try_from((hash >> 32) % parts as u64).unwrap_or(0)
}

impl<T> std::ops::Deref for Hashed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.of
    }
}

impl<T: PartialEq> PartialEq for Hashed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash && self.of == other.of
    }
}

impl<T: Eq> Eq for Hashed<T> {}

impl<T> Hash for Hashed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // The factor is an odd number near 2^64 divided by the golden ratio.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The low bits of a product depend on the low bits of its factors alone.
        self.0 ^ (self.0 >> 32)
    }
}

/// The live runs of each session, by owner. The end of one owner's session costs nothing for
/// other owners.
#[derive(Debug, Default)]
pub(super) struct Sessions(Map<Session, BTreeMap<u128, Slab<(u64, Run)>>>);

impl Sessions {
    /// Inserts a run into its session, and answers the run's slot for a later `remove`.
    pub(super) fn insert(&mut self, session: Session, owner: u128, serial: u64, run: Run) -> usize {
        let runs = self.0.entry(session).or_default();
        runs.entry(owner).or_default().insert((serial, run))
    }

    /// Removes a run from its session. The caller drops the answered run without the lock.
    pub(super) fn remove(&mut self, session: &Session, owner: u128, slot: usize) -> Option<Run> {
        let owners = self.0.get_mut(session)?;
        let runs = owners.get_mut(&owner)?;
        let run = runs.try_remove(slot).map(|(_, run)| run);
        if runs.is_empty() {
            owners.remove(&owner);
            if owners.is_empty() {
                self.0.remove(session);
            }
        }
        run
    }

    /// The live runs of one owner in the session, oldest first.
    pub(super) fn of(&self, session: &Session, owner: u128) -> Vec<Run> {
        let runs = self.0.get(session).and_then(|owners| owners.get(&owner));
        oldest_first(runs.into_iter())
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The live runs of all owners in the session, oldest first.
    pub(super) fn find(&self, session: &Session) -> Vec<Run> {
        let owners = self.0.get(session).into_iter();
        oldest_first(owners.flat_map(BTreeMap::values))
    }
}

fn oldest_first<'a>(runs: impl Iterator<Item = &'a Slab<(u64, Run)>>) -> Vec<Run> {
    let mut runs: Vec<_> = runs.flat_map(Slab::iter).map(|(_, run)| run).collect();
    // The runs mostly stand in order already, so the sort is cheap.
    runs.sort_by_key(|(serial, _)| *serial);
    runs.into_iter().map(|(_, run)| run.clone()).collect()
}
