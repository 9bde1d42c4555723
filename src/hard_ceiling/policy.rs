use std::time::Duration;

use http::{HeaderMap, Request};

use super::{announced::Announced, caller::Caller, observed::Observed};
use crate::{
    body::{Policy, Seen, Tap},
    run::{Clock, Limits, Nanos, Run, Scope, TaskId},
};

/// The limits of a layer, or of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(super) ceiling: Option<Duration>,
    pub(super) timeout: Option<Duration>,
}

/// Watches the absolute deadlines of one node.
#[derive(Debug)]
pub struct CeilingPolicy {
    scope: Scope,
    /// Boxed: most calls have none, and this moves with every answer.
    caller: Option<Box<Caller>>,
    /// The limits that end nothing, in a layer that observes.
    observed: Option<Box<Observed>>,
}

impl Totals {
    pub(super) const fn is_empty(self) -> bool {
        self.ceiling.is_none() && self.timeout.is_none()
    }

    /// With what the program set for this request in their place.
    #[inline]
    pub(super) fn replaced_by<B>(mut self, request: &Request<B>) -> Self {
        if let Some(limits) = request.extensions().get::<Limits>() {
            let set = |limit: Option<Duration>| limit.filter(|limit| !limit.is_zero());
            self.ceiling = set(limits.ceiling).or(self.ceiling);
            self.timeout = set(limits.timeout).or(self.timeout);
        }
        self
    }
}

impl CeilingPolicy {
    #[inline]
    pub(super) fn new(
        totals: Totals,
        announced: Option<Announced>,
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
        let caller = announced.map(|announced| Box::new(Caller::new(announced, found)));
        Self {
            scope,
            caller,
            observed: None,
        }
    }

    /// The same without a consequence for the node.
    pub(super) fn observing(totals: Totals, found: &Run, scope: Scope) -> Self {
        let opened = found.in_scope(scope).opened();
        Self {
            scope,
            caller: None,
            observed: Some(Box::new(Observed::new(totals, opened))),
        }
    }
}

impl Policy for CeilingPolicy {
    const READS: bool = false;
    const TIMED: bool = true;

    fn pending(
        &mut self,
        found: &Run,
        _: Option<&Tap>,
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
    fn frame(&mut self, _: &Run, _: Option<Seen>, _: Option<&Tap>) {
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
