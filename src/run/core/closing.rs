//! Between alive and ended: what is under way goes on, and nothing starts.

use std::{sync::Arc, sync::atomic::Ordering, task::Waker, time::Duration};

use super::{Hook, Node};
use crate::run::TerminalReason;

impl<P: Hook> Node<P> {
    /// The caller is gone: from now on nothing is opened at or below this node,
    /// and what works there goes on. The node ends as
    /// [`ClientDisconnect`](TerminalReason::ClientDisconnect) once nothing does
    /// any more, and at `until` at the latest. An end that comes before that
    /// wins as always.
    pub(crate) fn close(&self, until: Duration, now: Duration) {
        if self.nearest_end().is_some() {
            return;
        }
        self.clocks.drain(until);
        let mut wakers = Vec::new();
        let mut below = Vec::new();
        self.refuse(&mut wakers, &mut below);
        while let Some(node) = below.pop() {
            node.refuse(&mut wakers, &mut below);
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
        self.closing.load(Ordering::Acquire)
    }

    /// Whether this very node was [closed](Self::close), and so ends with the
    /// last one who works on it.
    pub(crate) fn is_draining(&self) -> bool {
        self.clocks.is_draining()
    }

    /// Refuses new work, and collects who must hear of it: whoever waits to
    /// start something has nothing to wait for.
    fn refuse(&self, wakers: &mut Vec<Waker>, below: &mut Vec<Arc<Self>>) {
        if self.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.hear();
        let inner = self.lock();
        inner.waiters.collect(false, wakers);
        below.extend(inner.children.alive());
    }

    /// Opened below a node that is closing: over before it begins.
    pub(super) fn stillborn(&self) {
        self.closing.store(true, Ordering::Release);
        drop(self.end(TerminalReason::ClientDisconnect, None, self.opened));
    }

    /// Nobody works on it any more.
    pub(super) fn drained(&self, now: Duration) {
        if self.end.get().is_none() {
            drop(self.end(TerminalReason::ClientDisconnect, None, now));
        }
    }
}
