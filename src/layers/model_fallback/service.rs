use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{layer::FallbackSettings, policy::FallbackPolicy};
use crate::{
    attempt::{AttemptBody, Attempts},
    body::ReplayBody,
    error::BoxError,
};

/// The service of a [`ModelFallbackLayer`](crate::layers::model_fallback::ModelFallbackLayer).
#[derive(Clone, Debug)]
pub struct ModelFallback<S> {
    inner: S,
    choices: Arc<FallbackSettings>,
    max_body: usize,
}

impl<S> ModelFallback<S> {
    pub(super) const fn new(inner: S, choices: Arc<FallbackSettings>, max_body: usize) -> Self {
        Self {
            inner,
            choices,
            max_body,
        }
    }
}

/// The response future of [`ModelFallback`].
pub type ModelFallbackFuture<S, Q, B> = Attempts<S, Q, B, FallbackPolicy>;

/// The response body of [`ModelFallback`].
pub type ModelFallbackBody<B> = AttemptBody<B>;

impl<S, Q, B> Service<Request<Q>> for ModelFallback<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes> + 'static,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Response = Response<ModelFallbackBody<B>>;
    type Error = BoxError;
    type Future = ModelFallbackFuture<S, Q, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let chain = FallbackPolicy::new(Arc::clone(&self.choices));
        Attempts::new(&mut self.inner, request, self.max_body, chain)
    }
}
