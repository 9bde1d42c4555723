//! The key of a run, hashed once for the choice of the shard and for the shard's map.

use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
};

use super::owner_caps::Owner;
use crate::run::RunId;

/// The key of a run in the registry: its owner and its id, with their hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryKey {
    pub(super) hash: u64,
    pub(super) owner: Owner,
    pub(super) id: RunId,
}

/// A hash map that takes the hashes of its keys from them.
pub(super) type KeyMap<V> = HashMap<EntryKey, V, BuildHasherDefault<KeyHash>>;

/// The hasher of a [`KeyMap`].
#[derive(Debug, Default)]
pub(super) struct KeyHash(u64);

impl EntryKey {
    /// Makes a key. `hasher` has a key of its own, because callers choose ids.
    pub(super) fn new(owner: Owner, id: RunId, hasher: &impl BuildHasher) -> Self {
        let hash = hasher.hash_one((owner, &id));
        Self { hash, owner, id }
    }

    /// The number of the shard, of `shards`, in which the key's entry is stored. It comes from
    /// other bits of the hash than the slot in the shard's map.
    pub(super) const fn shard(&self, shards: usize) -> usize {
        (self.hash >> 32) as usize % shards
    }
}

impl Hash for EntryKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hasher for KeyHash {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
