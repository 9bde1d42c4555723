use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{layer::RetryBudgetLayer, policy::RetryPolicy};
use crate::{
    attempt::{AttemptBody, Attempts},
    body::ReplayBody,
    error::BoxError,
};

/// The service of a [`RetryBudgetLayer`](crate::layers::retry_budget::RetryBudgetLayer).
#[derive(Clone, Debug)]
pub struct Retry<S> {
    inner: S,
    layer: RetryBudgetLayer,
}

impl<S> Retry<S> {
    pub(super) const fn new(inner: S, layer: RetryBudgetLayer) -> Self {
        Self { inner, layer }
    }
}

/// The response future of [`Retry`].
pub type RetryFuture<S, Q, B> = Attempts<S, Q, B, RetryPolicy>;

/// The response body of [`Retry`].
pub type RetryBody<B> = AttemptBody<B>;

impl<S, Q, B> Service<Request<Q>> for Retry<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes> + 'static,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Response = Response<RetryBody<B>>;
    type Error = BoxError;
    type Future = RetryFuture<S, Q, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let chain = RetryPolicy::new(&self.layer);
        Attempts::new(&mut self.inner, request, self.layer.max_body, chain)
    }
}
