use std::time::Duration;

use http::HeaderMap;

use super::{
    caller_deadline::CallerDeadline, caller_headers::CallerLimits, limits::CeilingLimits,
    observed::ObservedCeiling,
};
use crate::{
    run::{Clock, Nanos, Run, Scope, TaskId},
    supervise::{FrameKind, Observer, Policy},
};

/// Watches the absolute deadlines of one node.
#[derive(Debug)]
pub struct CeilingPolicy {
    scope: Scope,
    /// Boxed: most calls have none, and this moves with every answer.
    caller: Option<Box<CallerDeadline>>,
    /// The limits that end nothing, in a layer that observes.
    observed: Option<Box<ObservedCeiling>>,
}

impl CeilingPolicy {
    #[inline]
    pub(super) fn new(
        totals: CeilingLimits,
        announced: Option<CallerLimits>,
        found: &Run,
        scope: Scope,
    ) -> Self {
        let node = found.in_scope(scope);
        let limits = [
            (Clock::Ceiling, totals.ceiling),
            (Clock::Timeout, totals.timeout),
        ];
        for (clock, limit) in limits {
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

    /// The same without a consequence for the node.
    pub(super) fn observing(totals: CeilingLimits, found: &Run, scope: Scope) -> Self {
        let opened = found.in_scope(scope).opened();
        Self {
            scope,
            caller: None,
            observed: Some(Box::new(ObservedCeiling::new(totals, opened))),
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
