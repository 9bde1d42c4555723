use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::policy::{StepPolicy, Windows};
use crate::{
    error::BoxError,
    run::Scope,
    supervise::{Claim, SupervisedBody, SupervisedFuture},
};

/// The service of a [`StepTimeoutLayer`](crate::layers::step_timeout::StepTimeoutLayer).
#[derive(Clone, Copy, Debug)]
pub struct StepTimeout<S> {
    inner: S,
    windows: Option<Windows>,
    scope: Scope,
}

impl<S> StepTimeout<S> {
    pub(super) const fn new(inner: S, windows: Option<Windows>, scope: Scope) -> Self {
        Self {
            inner,
            windows,
            scope,
        }
    }
}

/// The response future of [`StepTimeout`].
pub type StepTimeoutFuture<F> = SupervisedFuture<F, StepPolicy>;

/// The response body of [`StepTimeout`].
pub type StepTimeoutBody<B> = SupervisedBody<B, StepPolicy>;

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for StepTimeout<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<StepTimeoutBody<ResBody>>;
    type Error = BoxError;
    type Future = StepTimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let Some(windows) = self.windows else {
            return SupervisedFuture::inert(self.inner.call(request));
        };
        let entry = Claim::of(&mut request);
        let policy = StepPolicy::new(windows.replaced_by(&request), &entry.run, self.scope);
        SupervisedFuture::new(entry, policy, request, |request| self.inner.call(request))
    }
}
