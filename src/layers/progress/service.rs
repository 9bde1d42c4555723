use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    body::ProgressBody,
    early::{Early, wants_stream},
    future::ProgressFuture,
    layer::ProgressLayer,
    pulse::Pulse,
};
use crate::{
    error::BoxError,
    run::{NodeKind, Run},
    supervise::ResponseFacts,
};

/// The service of a [`ProgressLayer`].
#[derive(Clone, Copy, Debug)]
pub struct Progress<S> {
    inner: S,
    layer: ProgressLayer,
}

impl<S> Progress<S> {
    pub(super) const fn new(inner: S, layer: ProgressLayer) -> Self {
        Self { inner, layer }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for Progress<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    // The bound is for the downcast to `ReplayBody`.
    ReqBody: 'static,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<ProgressBody<S::Future, ResBody>>;
    type Error = BoxError;
    type Future = ProgressFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let layer = &self.layer;
        let run = request.extensions().get::<Run>().cloned();
        // A layer that retries holds the head back, and has to see the upstream's own.
        let is_attempt = run
            .as_ref()
            .is_some_and(|run| run.kind() == NodeKind::Attempt);
        let (early, request) = match layer.early_head {
            Some(after) if !is_attempt => {
                let (wanted, request) = wants_stream(request, layer.streams);
                (wanted.then(|| Early::new(after)), request)
            }
            _ => (None, request),
        };
        let pulse = Pulse::new(run, layer);
        let facts = ResponseFacts::of(&request);
        ProgressFuture::new(self.inner.call(request), pulse, facts, early)
    }
}

impl<S> Layer<S> for ProgressLayer {
    type Service = Progress<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Progress::new(inner, *self)
    }
}
