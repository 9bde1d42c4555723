use std::{
    collections::HashMap,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher},
    sync::Arc,
};

use crate::run::RunId;

/// Whose run it is, and its id.
pub(super) type EntryKey = Hashed<RunName>;

/// The name of a session.
pub(super) type Session = Hashed<Arc<str>>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RunName {
    pub(super) owner: u128,
    pub(super) id: RunId,
}

/// Something that strangers choose, with its hash: made once, under a key that they
/// do not know, for all the maps that it is looked up in.
#[derive(Clone, Debug)]
pub(super) struct Hashed<T> {
    hash: u64,
    of: T,
}

/// A map by what was hashed before, or by numbers of our own.
pub(super) type Map<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Spreads one number over all bits, and is safe for those that no stranger chooses.
#[derive(Debug, Default)]
pub(super) struct Spread(u64);

impl<T: Hash> Hashed<T> {
    pub(super) fn new(of: T, hasher: &impl BuildHasher) -> Self {
        let hash = hasher.hash_one(&of);
        Self { hash, of }
    }

    /// The same for one whose hash is known.
    pub(super) const fn known(hash: u64, of: T) -> Self {
        Self { hash, of }
    }

    pub(super) const fn hash(&self) -> u64 {
        self.hash
    }

    /// Which of so many parts it is in: by bits that tell nothing of the place in a
    /// part's own maps.
    pub(super) fn part(&self, parts: usize) -> usize {
        part(self.hash, parts)
    }
}

/// The same for a hash.
pub(super) fn part(hash: u64, parts: usize) -> usize {
    // The remainder is smaller than the number of parts.
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
        // An odd number near 2^64 divided by the golden ratio.
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        // The low bits depend on the low bits alone.
        self.0 ^ (self.0 >> 32)
    }
}
