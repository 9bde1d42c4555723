//! The service of the layers that supervise each call, and make no call themselves.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{body::SupervisedBody, future::SupervisedFuture};
use crate::error::BoxError;

/// The service of a layer that supervises each call of the inner service `S`.
///
/// `L` is the layer, or its shared settings.
#[derive(Clone, Copy, Debug)]
pub struct SupervisedService<S, L> {
    inner: S,
    layer: L,
}

/// A layer that decides for each request how its call is supervised.
pub trait SupervisesCalls {
    /// Makes the inner call with `call`, and supervises it; or refuses the call.
    fn supervise<B, F>(
        &self,
        request: Request<B>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> SupervisedFuture<F>;
}

impl<L: SupervisesCalls> SupervisesCalls for Arc<L> {
    #[inline]
    fn supervise<B, F>(
        &self,
        request: Request<B>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> SupervisedFuture<F> {
        L::supervise(self, request, call)
    }
}

impl<S, L> SupervisedService<S, L> {
    pub(crate) const fn new(inner: S, layer: L) -> Self {
        Self { inner, layer }
    }
}

impl<S, L, ReqBody, ResBody> Service<Request<ReqBody>> for SupervisedService<S, L>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Error: Into<BoxError>>,
    L: SupervisesCalls,
    ResBody: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Response = Response<SupervisedBody<ResBody>>;
    type Error = BoxError;
    type Future = SupervisedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let inner = &mut self.inner;
        self.layer.supervise(request, |request| inner.call(request))
    }
}
