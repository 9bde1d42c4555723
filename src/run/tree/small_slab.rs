//! A slab that keeps its first item inline.

use std::sync::{Arc, Weak};

use slab::Slab;

/// A slab that holds its first item inline.
///
/// A node mostly holds one item of a kind at a time: one item needs no allocation, and the node
/// stays small.
#[derive(Debug)]
pub(super) struct SmallSlab<T> {
    first: Option<T>,
    rest: Option<Box<Slab<T>>>,
}

impl<T> SmallSlab<T> {
    pub(super) const fn new() -> Self {
        Self {
            first: None,
            rest: None,
        }
    }

    /// The key that the next [`insert`](Self::insert) will return. The slab reuses the keys of
    /// removed items.
    pub(super) fn next_key(&self) -> usize {
        match (&self.first, &self.rest) {
            (None, _) => 0,
            (Some(_), None) => 1,
            (Some(_), Some(rest)) => rest.vacant_key() + 1,
        }
    }

    pub(super) fn insert(&mut self, item: T) -> usize {
        if self.first.is_none() {
            self.first = Some(item);
            return 0;
        }
        self.rest.get_or_insert_default().insert(item) + 1
    }

    pub(super) fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        match key.checked_sub(1) {
            None => self.first.as_mut(),
            Some(key) => self.rest.as_mut()?.get_mut(key),
        }
    }

    /// Removes and returns the item with this key.
    pub(super) fn remove(&mut self, key: usize) -> Option<T> {
        match key.checked_sub(1) {
            None => self.first.take(),
            Some(key) => self.rest.as_mut()?.try_remove(key),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let rest = self.rest.iter().flat_map(|rest| rest.iter());
        self.first.iter().chain(rest.map(|(_, item)| item))
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.as_ref().map_or(0, |rest| rest.len())
    }
}

impl<T> SmallSlab<Weak<T>> {
    /// The items that are still alive.
    pub(super) fn alive(&self) -> impl Iterator<Item = Arc<T>> {
        self.iter().filter_map(Weak::upgrade)
    }
}
