use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use super::{Hook, Node};

impl<P: Hook> Node<P> {
    /// Stops the step windows at, above and below this node.
    pub(crate) fn pause(&self) {
        self.paused.fetch_add(1, Ordering::AcqRel);
        for ancestor in self.ancestors() {
            ancestor.paused_below.fetch_add(1, Ordering::AcqRel);
        }
        self.wake_near();
    }

    /// Takes one [`pause`](Self::pause) back.
    pub(crate) fn resume(&self) {
        self.paused.fetch_sub(1, Ordering::AcqRel);
        for ancestor in self.ancestors() {
            ancestor.paused_below.fetch_sub(1, Ordering::AcqRel);
        }
        self.wake_near();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused_below.load(Ordering::Acquire) > 0
            || self.paused.load(Ordering::Acquire) > 0
            || self
                .ancestors()
                .any(|node| node.paused.load(Ordering::Acquire) > 0)
    }

    fn wake_near(&self) {
        let mut wakers = Vec::new();
        let mut below: Vec<Arc<Self>> = Vec::new();
        let collect = |node: &Self, wakers: &mut Vec<Waker>, below: &mut Vec<Arc<Self>>| {
            let inner = node.lock();
            inner.waiters.collect(false, wakers);
            below.extend(inner.children.iter().filter_map(|(_, c)| c.upgrade()));
        };
        collect(self, &mut wakers, &mut below);
        while let Some(node) = below.pop() {
            collect(&node, &mut wakers, &mut below);
        }
        for ancestor in self.ancestors() {
            ancestor.lock().waiters.collect(true, &mut wakers);
        }
        for waker in wakers {
            waker.wake();
        }
    }
}
