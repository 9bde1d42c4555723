use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use super::{
    deadlines::{Nanos, nanos},
    end::EndHook,
    node::Node,
};

/// The pauses of one kind at one node. They change under the node's lock, and are read without it.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    count: AtomicU32,
    since: AtomicU64,
    total: AtomicU64,
}

/// The paused time of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paused {
    /// The time at which the current pause began; the earliest, if several overlap.
    pub(crate) since: Option<Nanos>,
    /// The total length of the pauses that are over.
    pub(crate) total: Nanos,
}

impl Pauses {
    fn begin(&self, now: Nanos) {
        if self.count.load(Ordering::Acquire) == 0 {
            self.since.store(now, Ordering::Release);
        }
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    fn end(&self, now: Nanos) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            let lasted = now.saturating_sub(self.since.load(Ordering::Acquire));
            self.total.fetch_add(lasted, Ordering::AcqRel);
        }
    }

    #[inline]
    fn is_on(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    #[inline]
    fn add_to(&self, paused: &mut Paused) {
        paused.total += self.total.load(Ordering::Acquire);
        if self.is_on() {
            let since = self.since.load(Ordering::Acquire);
            paused.since = Some(paused.since.map_or(since, |at| at.min(since)));
        }
    }
}

impl<P: EndHook> Node<P> {
    /// Stops the step windows at, above and below this node.
    pub(crate) fn pause(&self, now: Duration) {
        let now = nanos(now);
        self.change_pauses(|pauses| pauses.begin(now));
    }

    /// Undoes one [`pause`](Self::pause) of this node.
    pub(crate) fn resume(&self, now: Duration) {
        let now = nanos(now);
        self.change_pauses(|pauses| pauses.end(now));
    }

    fn change_pauses(&self, change: impl Fn(&Pauses)) {
        {
            let _writing = self.lock();
            change(&self.own_pauses);
            change(&self.pauses);
        }
        for ancestor in self.ancestors() {
            let _writing = ancestor.lock();
            change(&ancestor.pauses);
        }
        self.wake_near();
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.pauses.is_on() || self.ancestors().any(|node| node.own_pauses.is_on())
    }

    /// The paused time of this node, by pauses at, above and below it. Overlapping pauses of
    /// different nodes all count, so that no clock fires early.
    #[inline]
    pub(crate) fn paused(&self) -> Paused {
        let mut paused = Paused::default();
        self.pauses.add_to(&mut paused);
        for ancestor in self.ancestors() {
            ancestor.own_pauses.add_to(&mut paused);
        }
        paused
    }

    fn wake_near(&self) {
        let mut wakers = Vec::new();
        let mut below: Vec<Arc<Self>> = Vec::new();
        let collect = |node: &Self, wakers: &mut Vec<Waker>, below: &mut Vec<Arc<Self>>| {
            let inner = node.lock();
            inner.waiters.collect(false, wakers);
            below.extend(inner.children.alive());
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
