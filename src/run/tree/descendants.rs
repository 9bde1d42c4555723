//! Watches the clocks of a node from outside, for a run that no task polls.

use std::{
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    task::Waker,
    time::Duration,
};

use super::{deadlines::Clock, end::EndHook, idle_window::TaskId, node::Node};

impl<P: EndHook> Node<P> {
    /// Lowers a deadline of this node, and wakes its [watchers](Self::watch), to reset their
    /// timers.
    pub(crate) fn tighten(&self, clock: Clock, at: Duration) {
        if self.clocks.tighten(clock, at) {
            self.tightened();
        }
    }

    /// Wakes the watchers of the clocks of this node, because a deadline became earlier.
    pub(crate) fn tightened(&self) {
        // This fence pairs with the one in `watch`: the watcher sees the new deadline, or this
        // thread sees the watcher.
        fence(Ordering::SeqCst);
        let mut wakers = Vec::new();
        for ancestor in self.ancestors() {
            if ancestor.watched.load(Ordering::SeqCst) > 0 {
                ancestor.lock().waiters.collect(false, &mut wakers);
            }
        }
        if self.watched.load(Ordering::SeqCst) > 0 {
            self.collect_below(&mut wakers);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Makes the waiters of this node also wake when a deadline becomes earlier. The deadlines at,
    /// above and below this node count.
    pub(crate) fn watch(&self) {
        for node in std::iter::once(self).chain(self.ancestors()) {
            node.watched.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Undoes one [`watch`](Self::watch) of this node.
    pub(crate) fn unwatch(&self) {
        for node in std::iter::once(self).chain(self.ancestors()) {
            node.watched.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Does the [`check`](Self::check) of this node and of every node below it.
    pub(crate) fn check_below(&self, now: Duration) {
        let _over = self.check(now, TaskId::NONE);
        let mut below = self.children();
        while let Some(node) = below.pop() {
            let _over = node.check(now, TaskId::NONE);
            below.append(&mut node.children());
        }
    }

    /// Whether all work below this node was over at `before`, by an end or by its own deadline.
    /// Such work still counts as active, but does nothing more.
    pub(crate) fn is_left_over(&self, before: Duration) -> bool {
        let mut held = 0;
        let mut below = self.children();
        while let Some(node) = below.pop() {
            match node.end.get() {
                Some(end) => {
                    // The check that stored the end of the work may have run long after the work's
                    // deadline.
                    let deadline = node.clocks.next().map(Duration::from_nanos);
                    if deadline.map_or(end.at, |at| at.min(end.at)) <= before {
                        held += node.active.load(Ordering::SeqCst);
                    }
                }
                None => below.append(&mut node.children()),
            }
        }
        held >= self.active.load(Ordering::SeqCst)
    }

    pub(crate) fn children(&self) -> Vec<Arc<Self>> {
        self.lock().children.alive().collect()
    }

    fn collect_below(&self, wakers: &mut Vec<Waker>) {
        self.lock().waiters.collect(false, wakers);
        let mut below = self.children();
        while let Some(node) = below.pop() {
            node.lock().waiters.collect(false, wakers);
            below.append(&mut node.children());
        }
    }
}
