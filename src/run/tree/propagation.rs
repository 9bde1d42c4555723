//! Stores the end of a node, spreads it over the subtree, and calls the waiters.

use std::{sync::Arc, task::Waker, time::Duration};

use super::{
    end::End,
    node::{EndHook, Node, PendingWakes},
    waiters::wake_all,
};
use crate::run::{limit_kind::LimitHit, reason::TerminalReason};

/// The maximum number of later reasons that a node remembers beside the reason of its end.
const ALSO: usize = 8;

impl<P: EndHook> Node<P> {
    /// Makes this node end when `other` ends, though this node is not a descendant of `other`. If
    /// `other` is over or closing already, this node ends at once.
    pub(crate) fn follow(self: &Arc<Self>, other: &Arc<Self>) {
        let key = other.lock().children.insert(Arc::downgrade(self));
        let mut inner = self.lock();
        let rare = inner.rare.get_or_insert_default();
        rare.follows.push((Arc::downgrade(other), key));
        drop(inner);
        if let Some(end) = other.nearest_end() {
            self.inherit(end, other);
        } else if let (Some(closing), None) = (other.closing.get(), self.nearest_end()) {
            self.end_at_open(closing);
        }
    }

    /// Ends this node and every node below it, with a reason.
    ///
    /// # Errors
    ///
    /// The error is the end of this node, or of an ancestor, that was stored before. Then this node
    /// keeps `reason` in [`also`](Self::also), if there is room.
    pub(crate) fn end(
        &self,
        reason: TerminalReason,
        passed: Option<LimitHit>,
        now: Duration,
    ) -> Result<(), End> {
        self.latch(reason, passed, now, false, &mut PendingWakes::new())
    }

    /// Ends the node like [`end`](Self::end), but wakes no tasks that poll a live node above it. If
    /// the node is over already, `reason` is not kept.
    ///
    /// The method is for a node without work in progress, such as one with work that was dropped.
    pub(crate) fn settle(&self, reason: TerminalReason, now: Duration) -> Result<(), End> {
        self.latch(reason, None, now, true, &mut PendingWakes::new())
    }

    /// Ends this run with the reason and the limit of `call`, the end of its one call.
    pub(crate) fn settle_as(&self, call: &End, now: Duration) {
        self.settle_with(call, now, &mut PendingWakes::new());
    }

    /// Ends this run like [`settle_as`](Self::settle_as), as part of the end of its one call. The
    /// call's waiters are not woken yet.
    pub(crate) fn settle_with(&self, call: &End, now: Duration, later: &mut PendingWakes<P>) {
        let passed = LimitHit {
            limit: call.limit(),
            kind: call.limit_kind,
        };
        drop(self.latch(call.reason.clone(), Some(passed), now, true, later));
    }

    pub(super) fn latch(
        &self,
        reason: TerminalReason,
        passed: Option<LimitHit>,
        now: Duration,
        settled: bool,
        later: &mut PendingWakes<P>,
    ) -> Result<(), End> {
        let winner = match self.nearest_end() {
            Some(end) => end.clone(),
            None => {
                let lasted = now.saturating_sub(self.opened());
                // A check may find an absolute deadline late, for example at the next request.
                let lasted = match (&reason, passed.and_then(LimitHit::absolute)) {
                    (TerminalReason::HardCeiling | TerminalReason::CallerDeadline, Some(limit))
                        if !settled =>
                    {
                        limit.min(lasted)
                    }
                    _ => lasted,
                };
                let origin = (self.number, self.kind);
                End::new(reason.clone(), origin, now, lasted, passed)
            }
        };
        let ours = winner.origin == self.number;
        if self.end.set(winner).is_ok() {
            #[cfg(test)]
            gap::pass();
            self.spread(settled, later);
            if ours {
                return Ok(());
            }
        }
        if !settled {
            self.remember(reason);
        }
        match self.end.get() {
            Some(end) => Err(end.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn inherit(&self, end: &End, from: &Self) {
        let end = self.payload.on_own_clock(end, &from.payload);
        if self.end.set(end).is_ok() {
            self.spread(false, &mut PendingWakes::new());
        }
    }

    /// Stores this node's end in the nodes below without one, then calls hooks and wakers.
    fn spread(&self, settled: bool, later: &mut PendingWakes<P>) {
        let Some(end) = self.end.get() else { return };
        let mut wakers = Vec::new();
        let mut reached = Vec::new();
        self.collect(&mut wakers, &mut reached);
        if !settled {
            self.collect_drivers(&mut wakers);
        }
        // The walk is a loop and not a recursion: a chain of sub-agents may be deep.
        let mut next = 0;
        while next < reached.len() {
            let node = Arc::clone(&reached[next]);
            let end = node.payload.on_own_clock(end, &self.payload);
            if node.end.set(end).is_ok() {
                let inner = node.lock();
                inner.waiters.collect(false, &mut wakers);
                reached.extend(inner.children.alive());
                let follows = !inner.follows().is_empty();
                drop(inner);
                if follows {
                    // A follower has ancestors in a tree of its own, which poll it too.
                    node.collect_drivers(&mut wakers);
                }
                next += 1;
            } else {
                reached.swap_remove(next);
            }
        }
        self.payload.ended(self, end, later);
        for node in &reached {
            node.payload
                .ended(node, node.end.get().unwrap_or(end), later);
        }
        wake_all(wakers);
    }

    /// Collects the wakers of the tasks that poll this node from above, and changes the epochs.
    ///
    /// The nodes above are the ancestors of this node, each node that this node follows, and the
    /// ancestors of such a node.
    fn collect_drivers(&self, wakers: &mut Vec<Waker>) {
        let followed: Vec<_> = {
            let inner = self.lock();
            let nodes = inner.follows().iter();
            nodes.filter_map(|(node, _)| node.upgrade()).collect()
        };
        for ancestor in self.ancestors() {
            ancestor.bump_epoch();
            ancestor.lock().waiters.collect(true, wakers);
        }
        for node in followed {
            for above in node.path() {
                above.bump_epoch();
                above.lock().waiters.collect(true, wakers);
            }
        }
    }

    fn remember(&self, reason: TerminalReason) {
        let mut inner = self.lock();
        let also = &mut inner.rare.get_or_insert_default().also;
        if also.len() < ALSO && !also.contains(&reason) {
            also.push(reason);
        }
    }
}

/// Lets a test act between the store of an end and its spread.
#[cfg(test)]
pub(crate) mod gap {
    use std::cell::RefCell;

    type Act = Box<dyn FnOnce()>;

    thread_local! {
        static ACT: RefCell<Option<Act>> = const { RefCell::new(None) };
    }

    /// Makes the next end that this thread stores call `act` before the subtree learns of it.
    pub(crate) fn act_in_next(act: impl FnOnce() + 'static) {
        ACT.set(Some(Box::new(act)));
    }

    pub(super) fn pass() {
        if let Some(act) = ACT.take() {
            act();
        }
    }
}
