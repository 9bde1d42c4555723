use std::task::Waker;

use super::small_slab::SmallSlab;

/// Wakers that are called when a node, or something near it, ends.
#[derive(Debug)]
pub(crate) struct Waiters(SmallSlab<Waiter>);

#[derive(Debug)]
struct Waiter {
    waker: Waker,
    /// Also called when a descendant ends: a driver polls for those below it.
    below: bool,
}

impl Waiters {
    pub(super) const fn new() -> Self {
        Self(SmallSlab::new())
    }

    /// Answers the waker that was replaced: to drop it may drop a task, so that
    /// must not happen under the node's lock.
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

    /// Answers the waker, for the same reason.
    pub(crate) fn remove(&mut self, key: usize) -> Option<Waker> {
        Some(self.0.remove(key)?.waker)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn collect(&self, only_below: bool, into: &mut Vec<Waker>) {
        let wanted = self.0.iter().filter(|w| w.below || !only_below);
        wanted.for_each(|waiter| into.push(waiter.waker.clone()));
    }
}
