use std::time::Duration;

use http::Request;

use crate::{
    body::{Policy, Tap},
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
    pub(super) fn new(totals: Totals, found: &Run, scope: Scope) -> Self {
        let node = found.in_scope(scope);
        let limits = [
            (Clock::Ceiling, totals.ceiling),
            (Clock::Timeout, totals.timeout),
        ];
        for (clock, limit) in limits {
            if let Some(limit) = limit {
                node.clocks
                    .tighten(clock, node.opened().saturating_add(limit));
            }
        }
        Self { scope }
    }
}

impl Policy for CeilingPolicy {
    const READS: bool = false;
    const TIMED: bool = true;

    fn pending(&mut self, found: &Run, _: Option<&Tap>, _: Duration, _: TaskId) -> Option<Nanos> {
        found.in_scope(self.scope).clocks.next()
    }
}
