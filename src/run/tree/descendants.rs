//! Clocks that are watched from outside: of a run that nobody polls.

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
    /// Lowers a deadline, and calls those who [watch](Self::watch) the clocks of
    /// this node: they have a timer to set anew.
    pub(crate) fn tighten(&self, clock: Clock, at: Duration) {
        if self.clocks.tighten(clock, at) {
            self.tightened();
        }
    }

    /// A clock of this node has a new, earlier deadline.
    pub(crate) fn tightened(&self) {
        // Either whoever watches sees the new deadline, or is seen here.
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

    /// From now on the waiters here are also called when a deadline at, above or
    /// below this node becomes earlier.
    pub(crate) fn watch(&self) {
        for node in std::iter::once(self).chain(self.ancestors()) {
            node.watched.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Takes one [`watch`](Self::watch) back.
    pub(crate) fn unwatch(&self) {
        for node in std::iter::once(self).chain(self.ancestors()) {
            node.watched.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// [`check`](Self::check) of this node and of all below it.
    pub(crate) fn check_below(&self, now: Duration) {
        let _over = self.check(now, TaskId::NONE);
        let mut below = self.children();
        while let Some(node) = below.pop() {
            let _over = node.check(now, TaskId::NONE);
            below.append(&mut node.children());
        }
    }

    /// Whether all that is under way below this node was over at `before`, by an end
    /// or by its own deadline: it holds on to its place, and does nothing any more.
    pub(crate) fn is_left_over(&self, before: Duration) -> bool {
        let mut held = 0;
        let mut below = self.children();
        while let Some(node) = below.pop() {
            match node.end.get() {
                Some(end) => {
                    // It may have been over for long when somebody looked.
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
