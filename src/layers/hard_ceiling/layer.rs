//! The builder and the service of the hard ceiling.

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
    /// If `limit` is zero; use [`optional`](Self::optional) to leave it out.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self::optional(Some(limit))
    }

    /// Makes a layer that allows a node at most `limit` from its opening; for `None` no ceiling.
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
            limits: CeilingLimits {
                ceiling: limit,
                timeout: None,
            },
            scope: Scope::Found,
            caller_deadline: false,
            observes: false,
        }
    }

    /// A second absolute limit on the node, from its opening; none by default.
    ///
    /// This limit ends the node as
    /// [`CallerDeadline`](crate::TerminalReason::CallerDeadline), and also works in a
    /// layer without a ceiling.
    ///
    /// # Panics
    ///
    /// If `total` is `Some` and zero.
    #[must_use]
    pub const fn timeout(mut self, total: Option<Duration>) -> Self {
        if let Some(total) = total {
            assert!(!total.is_zero(), "a timeout must be longer than zero");
        }
        self.limits.timeout = total;
        self
    }

    /// Whether the limits in the caller's headers end the call too; false by default.
    ///
    /// See the [module](super#what-a-caller-announces). The announced limits only
    /// tighten, and end the call, never its run, in any [`scope`](Self::scope). The
    /// setting also works in a layer without a ceiling.
    #[must_use]
    pub const fn caller_deadline(mut self, honoured: bool) -> Self {
        self.caller_deadline = honoured;
        self
    }

    /// Shadow mode: the layer measures, and ends nothing.
    ///
    /// When a limit passes, observers get a
    /// [`WouldHaveEnded`](crate::RunNotice::WouldHaveEnded), and if the node completes all
    /// the same, a [`FalsePositive`](crate::RunNotice::FalsePositive). A layer with a limit
    /// that is known to be safe may stand beside it.
    ///
    /// In this mode the layer does not read the caller's headers.
    #[must_use]
    pub const fn observe(mut self) -> Self {
        self.observes = true;
        self
    }

    /// The node that the layer measures and ends; by default the one found in the request.
    #[must_use]
    pub const fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }
}

impl<S> Layer<S> for HardCeilingLayer {
    type Service = HardCeiling<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let mut layer = *self;
        layer.caller_deadline &= !layer.observes;
        HardCeiling { inner, layer }
    }
}

/// The service of a [`HardCeilingLayer`](crate::layers::hard_ceiling::HardCeilingLayer).
#[derive(Clone, Copy, Debug)]
pub struct HardCeiling<S> {
    inner: S,
    layer: HardCeilingLayer,
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
        let HardCeilingLayer {
            limits,
            mut scope,
            caller_deadline,
            observes,
        } = self.layer;
        if limits.is_empty() && !caller_deadline {
            return SupervisedFuture::inert(self.inner.call(request));
        }
        let mut entry = Claim::of(&mut request);
        let limits = limits.for_request(&request);
        let announced = caller_deadline.then(|| CallerLimits::of(request.headers()));
        let announced = announced.flatten();
        if announced.is_some() && entry.run.is_of_many() {
            // The announced limits are for this call; the layer's own stay on the run that
            // it found.
            request = entry.run.attach(request);
            entry = Claim::of(&mut request);
            scope = Scope::Run;
        }
        let policy = if observes {
            CeilingPolicy::observing(limits, &entry.run, scope)
        } else {
            CeilingPolicy::new(limits, announced, &entry.run, scope)
        };
        SupervisedFuture::new(entry, policy, request, |request| self.inner.call(request))
    }
}
