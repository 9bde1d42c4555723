//! Between alive and ended: what is under way goes on, and nothing starts.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::Duration,
};

use super::{
    end::{EndHook, LimitHit, PendingWakes},
    node::Node,
};
use crate::run::{kinds::NodeKind, reason::TerminalReason};

/// What a node that is closing ends as.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) reason: TerminalReason,
    pub(super) passed: Option<LimitHit>,
}

impl<P: EndHook> Node<P> {
    /// It will be over for `reason`: from now on nothing is opened at or below
    /// this node, and what works there goes on. The node ends once nothing does
    /// any more, and at `until` at the latest. An end that comes before that
    /// wins as always; of two that close it the first one's reason stays.
    pub(crate) fn close(&self, reason: &TerminalReason, until: Duration, now: Duration) {
        self.close_for(reason, None, until, now);
    }

    /// The same for a limit that was reached.
    pub(crate) fn close_for(
        &self,
        reason: &TerminalReason,
        passed: Option<LimitHit>,
        until: Duration,
        now: Duration,
    ) {
        let mut later = PendingWakes::new();
        self.close_with(reason, passed, until, now, &mut later);
    }

    /// The same while another node ends.
    pub(crate) fn close_with(
        &self,
        reason: &TerminalReason,
        passed: Option<LimitHit>,
        until: Duration,
        now: Duration,
        later: &mut PendingWakes<P>,
    ) {
        if self.nearest_end().is_some() {
            return;
        }
        let sooner = self.clocks.drain(until);
        let mut wakers = Vec::new();
        let mut below = Vec::new();
        let closing = Arc::new(Closing {
            reason: reason.clone(),
            passed,
        });
        self.refuse(&closing, sooner, &mut wakers, &mut below);
        while let Some(node) = below.pop() {
            if !node.last {
                node.refuse(&closing, sooner, &mut wakers, &mut below);
            } else if sooner {
                // Opened meanwhile; it is what the closing waits for.
                node.bump_epoch();
                node.lock().waiters.collect(false, &mut wakers);
            }
        }
        if self.is_idle() {
            // The last one may have left without having seen the clock.
            self.drained_with(now, later);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Whether nothing may start here any more, though the node lives.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get().is_some()
    }

    /// What this node ends as, at the latest, if it is closing.
    pub(crate) fn closing(&self) -> Option<&TerminalReason> {
        self.closing.get().map(|closing| &closing.reason)
    }

    /// The limit for which it is closing.
    pub(crate) fn closing_for(&self) -> Option<LimitHit> {
        self.closing.get()?.passed
    }

    /// Opens the one call that may start though this node is closing: attempts
    /// below it are opened alive, and nothing else is. Whoever opens it has to
    /// [`enter`](Self::enter) the node before, for one on which nobody works is
    /// over.
    pub(crate) fn last_call(self: &Arc<Self>, number: u64, payload: P, now: Duration) -> Arc<Self> {
        self.open(NodeKind::Call, number, payload, now, true)
    }

    /// Whether this is that call, or an attempt of it.
    #[inline]
    pub(crate) const fn is_last(&self) -> bool {
        self.last
    }

    /// What a child of this kind ends as at its birth; `None` if it lives.
    pub(super) fn refuses(&self, kind: NodeKind) -> Option<&Arc<Closing>> {
        if self.last && kind != NodeKind::Attempt {
            return self.ancestors().find_map(|node| node.closing.get());
        }
        self.closing.get()
    }

    /// Whether this very node was [closed](Self::close), and so ends with the
    /// last one who works on it.
    pub(crate) fn is_draining(&self) -> bool {
        self.clocks.is_draining()
    }

    /// Refuses new work, and collects who must hear of it: whoever waits to
    /// start something has nothing to wait for, and whoever works may have to end
    /// sooner.
    fn refuse(
        &self,
        closing: &Arc<Closing>,
        sooner: bool,
        wakers: &mut Vec<Waker>,
        below: &mut Vec<Arc<Self>>,
    ) {
        let refuses = self.closing.set(Arc::clone(closing)).is_ok();
        if !refuses && !sooner {
            return;
        }
        self.bump_epoch();
        let inner = self.lock();
        inner.waiters.collect(false, wakers);
        below.extend(inner.children.alive());
    }

    /// Opened below a node that is closing: over before it begins.
    pub(super) fn stillborn(&self, closing: &Arc<Closing>) {
        let _closed_before = self.closing.set(Arc::clone(closing));
        drop(self.end(closing.reason.clone(), closing.passed, self.opened));
    }

    /// Nobody works on it any more.
    pub(super) fn drained(&self, now: Duration) {
        let mut later = PendingWakes::new();
        self.drained_with(now, &mut later);
    }

    fn drained_with(&self, now: Duration, later: &mut PendingWakes<P>) {
        if let (None, Some(closing)) = (self.end.get(), self.closing.get()) {
            drop(self.latch(closing.reason.clone(), closing.passed, now, false, later));
        }
    }
}

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
