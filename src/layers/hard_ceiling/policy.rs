//! Watches the deadlines; in shadow mode reports which of them would have ended the node.

use std::time::Duration;

use http::{HeaderMap, Request};

use super::{caller_deadline::CallerDeadline, caller_headers::CallerLimits};
use crate::{
    run::{Clock, Limits, Nanos, Run, Scope, TaskId, TerminalReason, nanos},
    supervise::{FrameKind, Observer, Policy},
};

/// The supervision policy that watches the absolute deadlines of one node.
#[derive(Debug)]
pub struct CeilingPolicy {
    scope: Scope,
    // Boxed: most calls have no caller's deadline, and the policy moves with every answer.
    caller: Option<Box<CallerDeadline>>,
    /// The limits that a layer in shadow mode measures; `None` outside of shadow mode.
    observed: Option<Box<ObservedCeiling>>,
}

impl CeilingPolicy {
    #[inline]
    pub(super) fn new(
        limits: CeilingLimits,
        announced: Option<CallerLimits>,
        found: &Run,
        scope: Scope,
    ) -> Self {
        let node = found.in_scope(scope);
        for (clock, limit) in [
            (Clock::Ceiling, limits.ceiling),
            (Clock::Timeout, limits.timeout),
        ] {
            if let Some(limit) = limit {
                node.tighten(clock, node.opened().saturating_add(limit));
            }
        }
        let caller = announced.map(|announced| Box::new(CallerDeadline::new(announced, found)));
        Self {
            scope,
            caller,
            observed: None,
        }
    }

    /// Makes the policy of a layer in shadow mode.
    pub(super) fn observing(limits: CeilingLimits, found: &Run, scope: Scope) -> Self {
        let opened = found.in_scope(scope).opened();
        Self {
            scope,
            caller: None,
            observed: Some(Box::new(ObservedCeiling::new(limits, opened))),
        }
    }
}

impl Policy for CeilingPolicy {
    const READS: bool = false;
    const TIMED: bool = true;

    fn pending(
        &mut self,
        found: &Run,
        _: Option<&Observer>,
        now: Duration,
        task: TaskId,
    ) -> Option<Nanos> {
        if let Some(observed) = &mut self.observed {
            return observed.pending(found, self.scope, now);
        }
        let next = found.in_scope(self.scope).clocks.next();
        match &mut self.caller {
            Some(caller) => caller.pending(now, task).into_iter().chain(next).min(),
            None => next,
        }
    }

    #[inline]
    fn head(&mut self, _: &Run, headers: &mut HeaderMap) {
        if let Some(caller) = &mut self.caller {
            caller.answered(headers);
        }
    }

    #[inline]
    fn frame(&mut self, _: &Run, _: Option<FrameKind>, _: Option<&Observer>) {
        if let Some(caller) = &mut self.caller {
            caller.frame();
        }
    }

    fn failed(&mut self, _: &Run, _: Duration, task: TaskId) {
        if let Some(caller) = &self.caller {
            caller.failed(task);
        }
    }

    #[inline]
    fn release(&mut self, _: &Run) {
        if let Some(mut caller) = self.caller.take() {
            caller.release();
        }
    }
}

/// Absolute limits in shadow mode, which end no node.
#[derive(Debug)]
pub(super) struct ObservedCeiling {
    opened: Duration,
    /// The limits, each with its reason; `None` once it has passed and was reported.
    limits: [(TerminalReason, Option<Duration>); 2],
}

impl ObservedCeiling {
    pub(super) const fn new(limits: CeilingLimits, opened: Duration) -> Self {
        let limits = [
            (TerminalReason::HardCeiling, limits.ceiling),
            (TerminalReason::CallerDeadline, limits.timeout),
        ];
        Self { opened, limits }
    }

    /// Reports the limits that have passed; returns when the next one will.
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

/// The absolute limits of a layer, or of one of its calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CeilingLimits {
    pub(super) ceiling: Option<Duration>,
    pub(super) timeout: Option<Duration>,
}

impl CeilingLimits {
    pub(super) const fn is_empty(self) -> bool {
        self.ceiling.is_none() && self.timeout.is_none()
    }

    /// The limits of this request: those that the program has set replace the layer's.
    #[inline]
    pub(super) fn for_request<B>(mut self, request: &Request<B>) -> Self {
        if let Some(limits) = request.extensions().get::<Limits>() {
            let set = |limit: Option<Duration>| limit.filter(|limit| !limit.is_zero());
            self.ceiling = set(limits.ceiling).or(self.ceiling);
            self.timeout = set(limits.timeout).or(self.timeout);
        }
        self
    }
}
