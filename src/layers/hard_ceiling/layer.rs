//! The builder and the service of the hard ceiling, and its hooks for shadow mode.
//!
//! Except in shadow mode, the layer's own limits stand as deadlines on the node, which the outermost
//! layer of a poll enforces.

use std::time::Duration;

use http::Request;
use tower_layer::Layer;

use super::caller_limits::{CallerDeadline, CallerLimits};
use crate::{
    run::{Clock, Limits, Nanos, NodeKind, Run, Scope, TaskId, TerminalReason, nanos},
    supervise::{
        Claim, LayerHooks, LayerSettings, Observer, SupervisedFuture, SupervisedService,
        SupervisesCalls,
    },
};

/// Ends a node at an absolute limit: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct HardCeilingLayer {
    limits: CeilingLimits,
    scope: Scope,
    caller_deadline: bool,
    observes: bool,
}

impl HardCeilingLayer {
    /// Makes a layer that allows a node at most `limit` from its opening.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is zero; [`optional`](Self::optional) makes a layer without a ceiling.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self::optional(Some(limit))
    }

    /// Makes a layer that gives a node a ceiling of `limit` from its opening.
    ///
    /// With `None` the layer sets no ceiling. [`Limits`](crate::Limits) of a request may replace
    /// the ceiling, and [`Run::extend_once`](crate::Run::extend_once) may move that of a run.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is zero.
    #[must_use]
    pub const fn optional(limit: Option<Duration>) -> Self {
        if let Some(limit) = limit {
            assert!(!limit.is_zero(), "a ceiling must be longer than zero");
        }
        Self {
            limits: CeilingLimits {
                ceiling: limit,
                timeout: None,
            },
            scope: Scope::Found,
            caller_deadline: false,
            observes: false,
        }
    }

    /// Sets a second absolute limit on the node, from its opening; none by default.
    ///
    /// The timeout ends the node as [`CallerDeadline`](crate::TerminalReason::CallerDeadline). It
    /// also works in a layer without a ceiling.
    ///
    /// # Panics
    ///
    /// Panics if `total` is `Some` and zero.
    #[must_use]
    pub const fn timeout(mut self, total: Option<Duration>) -> Self {
        if let Some(total) = total {
            assert!(!total.is_zero(), "a timeout must be longer than zero");
        }
        self.limits.timeout = total;
        self
    }

    /// Sets whether limits in the caller's headers end the call too; false by default.
    ///
    /// See the [module](super#what-a-caller-announces). An announced limit can only end a call
    /// earlier than the other limits. The deadline ends the call, never a run that spans calls, in
    /// any [`scope`](Self::scope). The setting also works in a layer without a ceiling.
    #[must_use]
    pub const fn caller_deadline(mut self, honored: bool) -> Self {
        self.caller_deadline = honored;
        self
    }

    /// Turns on shadow mode: the layer measures, and ends nothing.
    ///
    /// At the first `Pending` after a limit has passed, observers get a
    /// [`WouldHaveEnded`](crate::RunNotice::WouldHaveEnded). If the node completes after that,
    /// observers get a [`FalsePositive`](crate::RunNotice::FalsePositive). A second layer, with a
    /// limit known to be safe, may enforce that limit in the same stack.
    ///
    /// In shadow mode the layer does not read the caller's headers.
    #[must_use]
    pub const fn observe(mut self) -> Self {
        self.observes = true;
        self
    }

    /// Sets the node that the layer's limits measure and end; by default the one in the request.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// The shorter of the ceiling and the timeout; `None` without either, and in shadow mode.
    pub(crate) fn earliest(&self) -> Option<Duration> {
        let limits = [self.limits.ceiling, self.limits.timeout];
        let earliest = limits.into_iter().flatten().min();
        earliest.filter(|_| !self.observes)
    }

    /// Whether the layer limits no call.
    #[inline]
    pub(crate) const fn is_off(&self) -> bool {
        self.limits.is_empty() && !self.reads_headers()
    }

    /// Whether limits in the caller's headers count. In shadow mode they do not.
    const fn reads_headers(&self) -> bool {
        self.caller_deadline && !self.observes
    }

    /// Supervises a call as [`supervise`](SupervisesCalls::supervise) does, also if the layer is off.
    /// `within` gets the settings of this layer, and returns those of the wrapper.
    #[inline]
    pub(crate) fn supervise_with<B, F>(
        &self,
        mut request: Request<B>,
        within: impl FnOnce(LayerSettings, &Request<B>, &Run) -> LayerSettings,
        inner: impl FnOnce(Request<B>) -> F,
    ) -> SupervisedFuture<F> {
        let mut entry = Claim::of(&mut request);
        let mut scope = self.scope;
        let announced = self
            .reads_headers()
            .then(|| CallerLimits::of(request.headers()));
        let announced = announced.flatten();
        let limits = self.limits.for_request(&request);
        if announced.is_some() && entry.run.node().is_of_many() {
            // The announced limits hold for this call alone, so the call gets a separate node. The
            // layer's limits stay on the run in the request.
            request = entry.run.attach(request);
            entry = Claim::of(&mut request);
            scope = Scope::Run;
        }
        let settings = if self.is_off() {
            // Such a layer ignores the limits of the request, too.
            LayerSettings::passive()
        } else if self.observes {
            LayerSettings::hooks(ObservedCeiling::new(limits, &entry.run, scope))
        } else {
            limits.tighten(&entry.run, scope);
            match announced {
                Some(announced) => {
                    let slot = request.extensions().get().cloned();
                    LayerSettings::hooks(CallerDeadline::new(announced, &entry.run, slot))
                }
                None => LayerSettings::passive(),
            }
        };
        let settings = within(settings, &request, &entry.run);
        SupervisedFuture::new(entry, settings, request, inner)
    }
}

impl<S> Layer<S> for HardCeilingLayer {
    type Service = HardCeiling<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SupervisedService::new(inner, *self)
    }
}

/// The service of a [`HardCeilingLayer`](crate::layers::hard_ceiling::HardCeilingLayer).
pub type HardCeiling<S> = SupervisedService<S, HardCeilingLayer>;

impl SupervisesCalls for HardCeilingLayer {
    #[inline]
    fn supervise<B, F>(
        &self,
        request: Request<B>,
        inner: impl FnOnce(Request<B>) -> F,
    ) -> SupervisedFuture<F> {
        if self.is_off() {
            return SupervisedFuture::inert(inner(request));
        }
        self.supervise_with(request, |settings, _, _| settings, inner)
    }
}

/// The limits of a layer in shadow mode, which reports them and ends no node.
#[derive(Debug)]
struct ObservedCeiling {
    scope: Scope,
    opened: Duration,
    /// Each limit with its reason; `None` if it is not set, or has passed and was reported.
    limits: [(TerminalReason, Option<Duration>); 2],
}

impl ObservedCeiling {
    fn new(limits: CeilingLimits, found: &Run, scope: Scope) -> Self {
        let opened = found.in_scope(scope).opened();
        let limits = [
            (TerminalReason::HardCeiling, limits.ceiling),
            (TerminalReason::CallerDeadline, limits.timeout),
        ];
        Self {
            scope,
            opened,
            limits,
        }
    }
}

impl LayerHooks for ObservedCeiling {
    /// Reports the limits that have passed, and returns the time of the next one.
    fn pending(
        &mut self,
        found: &Run,
        _: Option<&mut Observer>,
        now: Nanos,
        _: TaskId,
    ) -> Option<Nanos> {
        let now = Duration::from_nanos(now);
        let mut next: Option<Nanos> = None;
        for (reason, slot) in &mut self.limits {
            let Some(limit) = *slot else { continue };
            let moved = found.in_scope(self.scope).extension();
            let at = self.opened.saturating_add(limit);
            let at = at.saturating_add(Duration::from_nanos(moved));
            if at <= now {
                *slot = None;
                found.in_scope(self.scope).would_end(reason, Some(limit));
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

    /// Sets the limits as deadlines on the node in `scope`, unless earlier ones are set.
    #[inline]
    fn tighten(self, found: &Run, scope: Scope) {
        let node = found.in_scope(scope);
        let before = node.own_deadline();
        for (clock, limit) in [
            (Clock::Ceiling, self.ceiling),
            (Clock::Timeout, self.timeout),
        ] {
            if let Some(limit) = limit {
                node.tighten(clock, node.opened().saturating_add(limit));
            }
        }
        let is_shared = node.kind() == NodeKind::Run && !node.settlement().ends_with_call();
        if is_shared && node.own_deadline() != before {
            // The timers of the run's other calls are still set to the old deadline.
            node.wake_near();
        }
    }

    /// The limits for this request: those in its `Limits` extension replace those of the layer, and
    /// a zero removes one.
    #[inline]
    pub(super) fn for_request<B>(mut self, request: &Request<B>) -> Self {
        if let Some(limits) = Limits::of(request.extensions()) {
            let set = |limit: &mut Option<Duration>, of_request: Option<Duration>| {
                if let Some(limit_of_request) = of_request {
                    *limit = Some(limit_of_request).filter(|limit| !limit.is_zero());
                }
            };
            set(&mut self.ceiling, limits.ceiling);
            set(&mut self.timeout, limits.timeout);
        }
        self
    }
}
