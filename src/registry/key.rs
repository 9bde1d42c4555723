//! The key of a run, hashed once for the choice of the shard and for the shard's table.

use std::hash::BuildHasher;

use super::owner_caps::Owner;
use crate::run::RunId;

/// The key of a run in the registry: its owner and its id, with their hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryKey {
    pub(super) hash: u64,
    pub(super) owner: Owner,
    pub(super) id: RunId,
}

impl EntryKey {
    /// Makes a key. `hasher` is seeded at random, because callers choose ids and could
    /// otherwise choose many of one hash.
    pub(super) fn new(owner: Owner, id: RunId, hasher: &impl BuildHasher) -> Self {
        let hash = hasher.hash_one((owner, &id));
        Self { hash, owner, id }
    }

    /// The number of the shard, of `shards`, in which the key's entry is stored. The number comes
    /// from other bits of the hash than the slot in the shard's table.
    pub(super) const fn shard(&self, shards: usize) -> usize {
        (self.hash >> 32) as usize % shards
    }
}
