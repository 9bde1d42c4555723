//! The wakers of the tasks that wait at a node.

use std::{
    sync::{Arc, Weak},
    task::Waker,
};

use slab::Slab;

/// The wakers of the tasks that wait at one node. [`Node::wait`](super::node::Node::wait) says when
/// the wakers are called.
#[derive(Debug)]
pub(crate) struct Waiters(SmallSlab<Waiter>);

#[derive(Debug)]
struct Waiter {
    waker: Waker,
    /// Whether the waker is also called when a descendant pauses or ends. A settlement is no such
    /// end. A task that polls the node needs this, because its poll may also drive descendants.
    below: bool,
}

impl Waiters {
    pub(super) const fn new() -> Self {
        Self(SmallSlab::new())
    }

    /// Stores a task's waker under `key`, and returns the replaced waker. If no waker has this key,
    /// the method writes a new key to `key`.
    ///
    /// The caller drops the returned waker after it released the node's lock, because the drop of a
    /// waker may drop a task.
    pub(crate) fn set(
        &mut self,
        key: &mut Option<usize>,
        waker: &Waker,
        below: bool,
    ) -> Option<Waker> {
        let waker = waker.clone();
        match key.and_then(|key| self.0.get_mut(key)) {
            Some(waiter) => {
                waiter.below = below;
                Some(std::mem::replace(&mut waiter.waker, waker))
            }
            None => {
                *key = Some(self.0.insert(Waiter { waker, below }));
                None
            }
        }
    }

    /// Removes and returns a task's waker, which the caller drops without the node's lock.
    pub(crate) fn remove(&mut self, key: usize) -> Option<Waker> {
        Some(self.0.remove(key)?.waker)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the wakers to `into`; with `only_below`, those alone of tasks that poll the node.
    pub(crate) fn collect(&self, only_below: bool, into: &mut Vec<Waker>) {
        let wanted = self.0.iter().filter(|w| w.below || !only_below);
        wanted.for_each(|waiter| into.push(waiter.waker.clone()));
    }
}

/// Calls the wakers, which the caller collected before it released the nodes' locks.
pub(super) fn wake_all(wakers: Vec<Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

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
