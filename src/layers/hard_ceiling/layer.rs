//! The builder and the service.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    caller_headers::CallerLimits,
    policy::{CeilingLimits, CeilingPolicy},
};
use crate::{
    error::BoxError,
    run::Scope,
    supervise::{Claim, SupervisedBody, SupervisedFuture},
};

/// Ends a node at an absolute limit: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct HardCeilingLayer {
    totals: CeilingLimits,
    scope: Scope,
    caller_deadline: bool,
    observes: bool,
}

impl HardCeilingLayer {
    /// At most `limit` from the node's opening.
    ///
    /// # Panics
    ///
    /// If `limit` is zero; use [`optional`](Self::optional) to leave it out.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self::optional(Some(limit))
    }

    /// The same, or a layer that does nothing for `None`.
    ///
    /// # Panics
    ///
    /// If `limit` is zero.
    #[must_use]
    pub const fn optional(limit: Option<Duration>) -> Self {
        if let Some(limit) = limit {
            assert!(!limit.is_zero(), "a ceiling must be longer than zero");
        }
        Self {
            totals: CeilingLimits {
                ceiling: limit,
                timeout: None,
            },
            scope: Scope::Found,
            caller_deadline: false,
            observes: false,
        }
    }

    /// A second absolute clock, whose end is
    /// [`CallerDeadline`](crate::TerminalReason::CallerDeadline); none by
    /// default. It also works in a layer without a ceiling.
    ///
    /// # Panics
    ///
    /// If `total` is `Some` and zero.
    #[must_use]
    pub const fn timeout(mut self, total: Option<Duration>) -> Self {
        if let Some(total) = total {
            assert!(!total.is_zero(), "a timeout must be longer than zero");
        }
        self.totals.timeout = total;
        self
    }

    /// Whether what the caller announced in its headers ends the call too: see
    /// the [module](super#what-a-caller-announces). Not by default. It also
    /// works in a layer without a ceiling.
    ///
    /// It only tightens, and ends the call, never its run, in any
    /// [`scope`](Self::scope).
    #[must_use]
    pub const fn caller_deadline(mut self, honoured: bool) -> Self {
        self.caller_deadline = honoured;
        self
    }

    /// Shadow mode: measures and ends nothing. When a limit passes, observers are told
    /// what [would have ended](crate::RunNotice::WouldHaveEnded), and if it completes all
    /// the same, that this was a [false positive](crate::RunNotice::FalsePositive).
    /// Another layer, of a limit that is known to be safe, may stand beside it.
    ///
    /// What a caller announces is not looked at then.
    #[must_use]
    pub const fn observe(mut self) -> Self {
        self.observes = true;
        self
    }

    /// Which node is measured, and ended. By default the one found.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }
}

impl<S> Layer<S> for HardCeilingLayer {
    type Service = HardCeiling<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let announces = self.caller_deadline && !self.observes;
        HardCeiling::new(inner, self.totals, self.scope, announces, self.observes)
    }
}

/// The service of a [`HardCeilingLayer`](crate::layers::hard_ceiling::HardCeilingLayer).
#[derive(Clone, Copy, Debug)]
pub struct HardCeiling<S> {
    inner: S,
    totals: CeilingLimits,
    scope: Scope,
    caller_deadline: bool,
    observes: bool,
}

impl<S> HardCeiling<S> {
    pub(super) const fn new(
        inner: S,
        totals: CeilingLimits,
        scope: Scope,
        caller_deadline: bool,
        observes: bool,
    ) -> Self {
        Self {
            inner,
            totals,
            scope,
            caller_deadline,
            observes,
        }
    }
}

/// The response future of [`HardCeiling`].
pub type HardCeilingFuture<F> = SupervisedFuture<F, CeilingPolicy>;

/// The response body of [`HardCeiling`].
pub type HardCeilingBody<B> = SupervisedBody<B, CeilingPolicy>;

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for HardCeiling<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<HardCeilingBody<ResBody>>;
    type Error = BoxError;
    type Future = HardCeilingFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        if self.totals.is_empty() && !self.caller_deadline {
            return SupervisedFuture::inert(self.inner.call(request));
        }
        let mut entry = Claim::of(&mut request);
        let totals = self.totals.replaced_by(&request);
        let announces = self.caller_deadline;
        let announced = announces.then(|| CallerLimits::by(request.headers()));
        let announced = announced.flatten();
        let mut scope = self.scope;
        if announced.is_some() && entry.run.is_of_many() {
            // What this caller announced ends this call; the rest is measured on
            // the run, as it was found.
            request = entry.run.attach(request);
            entry = Claim::of(&mut request);
            scope = Scope::Run;
        }
        let policy = if self.observes {
            CeilingPolicy::observing(totals, &entry.run, scope)
        } else {
            CeilingPolicy::new(totals, announced, &entry.run, scope)
        };
        SupervisedFuture::new(entry, policy, request, |request| self.inner.call(request))
    }
}
