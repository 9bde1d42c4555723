use std::time::Duration;

use super::limits::CeilingLimits;
use crate::run::{Nanos, Run, Scope, TerminalReason, nanos};

/// Absolute limits in shadow mode: they have passed or will, and end nothing.
#[derive(Debug)]
pub(super) struct ObservedCeiling {
    opened: Duration,
    /// None once it has passed, and was told.
    limits: [(TerminalReason, Option<Duration>); 2],
}

impl ObservedCeiling {
    pub(super) const fn new(totals: CeilingLimits, opened: Duration) -> Self {
        let limits = [
            (TerminalReason::HardCeiling, totals.ceiling),
            (TerminalReason::CallerDeadline, totals.timeout),
        ];
        Self { opened, limits }
    }

    /// Tells what has passed; answers when the next limit will.
    pub(super) fn pending(&mut self, found: &Run, scope: Scope, now: Duration) -> Option<Nanos> {
        let mut next: Option<Nanos> = None;
        for (reason, slot) in &mut self.limits {
            let Some(limit) = *slot else { continue };
            let at = self.opened.saturating_add(limit);
            if at <= now {
                *slot = None;
                found.would_end(scope, reason, Some(limit));
            } else {
                next = next.into_iter().chain([nanos(at)]).min();
            }
        }
        next
    }
}
