use std::task::Waker;

use slab::Slab;

/// Wakers that are called when a node, or something near it, ends.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    slots: Slab<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    waker: Waker,
    /// Also called when a descendant ends: a driver polls for those below it.
    below: bool,
}

impl Waiters {
    pub(crate) fn set(&mut self, key: &mut Option<usize>, waker: &Waker, below: bool) {
        match key.and_then(|key| self.slots.get_mut(key)) {
            Some(waiter) => {
                waiter.waker.clone_from(waker);
                waiter.below = below;
            }
            None => {
                let waker = waker.clone();
                *key = Some(self.slots.insert(Waiter { waker, below }));
            }
        }
    }

    pub(crate) fn remove(&mut self, key: usize) {
        self.slots.try_remove(key);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn collect(&self, only_below: bool, into: &mut Vec<Waker>) {
        let wanted = self.slots.iter().filter(|(_, w)| w.below || !only_below);
        into.extend(wanted.map(|(_, waiter)| waiter.waker.clone()));
    }
}
