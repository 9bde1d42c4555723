use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{caller_headers::CallerLimits, limits::CeilingLimits, policy::CeilingPolicy};
use crate::{
    error::BoxError,
    run::Scope,
    supervise::{Claim, SupervisedBody, SupervisedFuture},
};

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
