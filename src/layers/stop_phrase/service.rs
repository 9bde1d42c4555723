use std::{
    mem,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{Either, Full};
use tower_service::Service;

use super::{phrases::Phrases, stop::Stop};
use crate::{
    body::ReplayBody,
    error::BoxError,
    registry::RunRegistry,
    supervise::{Claim, Policy, ReadRequest, SupervisedBody, SupervisedFuture},
};

/// The service of a [`StopPhraseLayer`](crate::layers::stop_phrase::StopPhraseLayer).
#[derive(Clone, Debug)]
pub struct StopPhrase<S> {
    inner: S,
    registry: RunRegistry,
    phrases: Phrases,
    max_body: usize,
}

impl<S> StopPhrase<S> {
    pub(super) const fn new(
        inner: S,
        registry: RunRegistry,
        phrases: Phrases,
        max_body: usize,
    ) -> Self {
        Self {
            inner,
            registry,
            phrases,
            max_body,
        }
    }
}

/// Measures nothing.
#[derive(Debug)]
pub struct StopPolicy;

impl Policy for StopPolicy {
    const READS: bool = false;
}

/// The response future of [`StopPhrase`].
pub type StopPhraseFuture<S, Q> = SupervisedFuture<ReadRequest<S, Q, Stop>, StopPolicy>;

/// The response body of [`StopPhrase`].
pub type StopPhraseBody<B> = SupervisedBody<Either<B, Full<Bytes>>, StopPolicy>;

impl<S, Q, B> Service<Request<Q>> for StopPhrase<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes> + 'static,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Response = Response<StopPhraseBody<B>>;
    type Error = BoxError;
    type Future = StopPhraseFuture<S, Q>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let entry = Claim::of(&mut request);
        let run = entry.run.clone();
        let stop = Stop::new(run, self.registry.clone(), self.phrases.clone());
        // The clone has not been asked whether it is ready.
        let next = self.inner.clone();
        let service = mem::replace(&mut self.inner, next);
        let max_body = self.max_body;
        SupervisedFuture::new(entry, StopPolicy, request, |request| {
            ReadRequest::new(service, stop, request, max_body)
        })
    }
}
