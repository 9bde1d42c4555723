use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::policy::{CeilingPolicy, Totals};
use crate::{
    BoxError,
    body::{Entry, SupervisedBody, SupervisedFuture},
    run::Scope,
};

/// The service of a [`HardCeilingLayer`](super::HardCeilingLayer).
#[derive(Clone, Copy, Debug)]
pub struct HardCeiling<S> {
    inner: S,
    totals: Totals,
    scope: Scope,
}

impl<S> HardCeiling<S> {
    pub(super) const fn new(inner: S, totals: Totals, scope: Scope) -> Self {
        Self {
            inner,
            totals,
            scope,
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
        if self.totals.is_empty() {
            return SupervisedFuture::inert(self.inner.call(request));
        }
        let entry = Entry::of(&mut request);
        let totals = self.totals.replaced_by(&request);
        let policy = CeilingPolicy::new(totals, &entry.run, self.scope);
        SupervisedFuture::new(entry, policy, request, |request| self.inner.call(request))
    }
}
