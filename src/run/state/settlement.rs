//! The task or layer that settles a node.

use std::sync::atomic::{AtomicU8, Ordering};

/// The rule for a node: which task or layer settles it, and with which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Settlement {
    /// The layer or the task that opened the node settles it, once it has dropped its work.
    Opener,
    /// The first layer that sees the request with this call settles the call.
    Unclaimed,
    /// The opener settles the call, as for [`Opener`](Self::Opener), and the run above ends with
    /// it.
    OnlyCall,
    /// No layer settles the run: it spans calls, and ends by a reason or because it is idle.
    Shared,
    /// The run's one call settles the run: the run ends as the call does.
    Single,
    /// The layer that opened the run for one call settles the run.
    Layer,
}

/// The [`Settlement`] of a node, which may change while threads read it.
#[derive(Debug)]
pub(crate) struct AtomicSettlement(AtomicU8);

impl AtomicSettlement {
    pub(super) const fn new(settlement: Settlement) -> Self {
        Self(AtomicU8::new(settlement as u8))
    }

    pub(crate) fn set(&self, settlement: Settlement) {
        self.0.store(settlement as u8, Ordering::Release);
    }

    pub(crate) fn is(&self, settlement: Settlement) -> bool {
        self.0.load(Ordering::Acquire) == settlement as u8
    }

    /// Whether this run ends with its one call.
    pub(crate) fn is_with_call(&self) -> bool {
        self.is(Settlement::Single) || self.is(Settlement::Layer)
    }

    /// Claims a call that no layer has claimed, and answers whether the caller must settle it now.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        let (unclaimed, opener) = (Settlement::Unclaimed as u8, Settlement::Opener as u8);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let claimed = || self.0.compare_exchange(unclaimed, opener, success, failure);
        // The call is mostly claimed already: a load leaves the cache line shared.
        self.is(Settlement::Unclaimed) && claimed().is_ok()
    }
}
