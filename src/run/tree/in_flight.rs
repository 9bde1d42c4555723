//! Who works on a node, or below it.

use std::{sync::atomic::Ordering, time::Duration};

use super::{latch::EndHook, node::Node};

impl<P: EndHook> Node<P> {
    /// Counts one more piece of work at this node, for it and all ancestors.
    pub(crate) fn enter(&self) {
        self.active.fetch_add(1, Ordering::AcqRel);
        for ancestor in self.ancestors() {
            ancestor.active.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Takes one [`enter`](Self::enter) back. The last one to leave a node that
    /// is closing ends it.
    pub(crate) fn leave(&self, now: Duration) {
        let mut wakers = Vec::new();
        for node in std::iter::once(self).chain(self.ancestors()) {
            // In one order with the clock of the closing.
            if node.active.fetch_sub(1, Ordering::SeqCst) != 1 {
                continue;
            }
            if node.is_draining() {
                node.drained(now);
            }
            if node.end.get().is_some() {
                node.lock().waiters.collect(false, &mut wakers);
            }
        }
        for node in std::iter::once(self).chain(self.ancestors()) {
            match node.is_idle() {
                true if node.end.get().is_some() => node.payload.settled(node),
                true => node.payload.idle(node),
                false => {}
            }
        }
        for waker in wakers {
            waker.wake();
        }
        for node in std::iter::once(self).chain(self.ancestors()) {
            if node.end.get().is_some() && node.is_idle() {
                node.payload.woken(node);
            }
        }
    }

    /// A task of its own works on this node as well, as part of what was
    /// entered.
    pub(crate) fn enter_task(&self) {
        for node in std::iter::once(self).chain(self.ancestors()) {
            node.tasks.fetch_add(1, Ordering::AcqRel);
        }
        self.enter();
    }

    /// Takes one [`enter_task`](Self::enter_task) back.
    pub(crate) fn leave_task(&self, now: Duration) {
        for node in std::iter::once(self).chain(self.ancestors()) {
            node.tasks.fetch_sub(1, Ordering::AcqRel);
        }
        self.leave(now);
    }

    /// How many pieces of work there are at or below this node.
    pub(crate) fn active(&self) -> usize {
        let tasks = self.tasks.load(Ordering::Acquire);
        self.active.load(Ordering::Acquire).saturating_sub(tasks)
    }

    /// Whether nobody works at or below this node, no task either.
    pub(crate) fn is_idle(&self) -> bool {
        self.active.load(Ordering::SeqCst) == 0
    }
}
