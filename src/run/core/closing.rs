//! Between alive and ended: what is under way goes on, and nothing starts.

use std::{sync::Arc, task::Waker, time::Duration};

use super::{Hook, Node};
use crate::run::TerminalReason;

impl<P: Hook> Node<P> {
    /// It will be over for `reason`: from now on nothing is opened at or below
    /// this node, and what works there goes on. The node ends once nothing does
    /// any more, and at `until` at the latest. An end that comes before that
    /// wins as always; of two that close it the first one's reason stays.
    pub(crate) fn close(&self, reason: &TerminalReason, until: Duration, now: Duration) {
        if self.nearest_end().is_some() {
            return;
        }
        self.clocks.drain(until);
        let mut wakers = Vec::new();
        let mut below = Vec::new();
        self.refuse(reason, &mut wakers, &mut below);
        while let Some(node) = below.pop() {
            node.refuse(reason, &mut wakers, &mut below);
        }
        if self.is_idle() {
            // The last one may have left without having seen the clock.
            self.drained(now);
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
        self.closing.get()
    }

    /// Whether this very node was [closed](Self::close), and so ends with the
    /// last one who works on it.
    pub(crate) fn is_draining(&self) -> bool {
        self.clocks.is_draining()
    }

    /// Refuses new work, and collects who must hear of it: whoever waits to
    /// start something has nothing to wait for.
    fn refuse(&self, reason: &TerminalReason, wakers: &mut Vec<Waker>, below: &mut Vec<Arc<Self>>) {
        if self.closing.set(reason.clone()).is_err() {
            return;
        }
        self.hear();
        let inner = self.lock();
        inner.waiters.collect(false, wakers);
        below.extend(inner.children.alive());
    }

    /// Opened below a node that is closing: over before it begins.
    pub(super) fn stillborn(&self, reason: &TerminalReason) {
        let _closed_before = self.closing.set(reason.clone());
        drop(self.end(reason.clone(), None, self.opened));
    }

    /// Nobody works on it any more.
    pub(super) fn drained(&self, now: Duration) {
        if let (None, Some(reason)) = (self.end.get(), self.closing.get()) {
            drop(self.end(reason.clone(), None, now));
        }
    }
}
