//! The wakers of the tasks that wait at a node.

use std::task::Waker;

use super::small_slab::SmallSlab;

/// The wakers of the tasks that wait at one node.
/// [`Node::register_waker`](super::node::Node::register_waker) says when they are called.
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
