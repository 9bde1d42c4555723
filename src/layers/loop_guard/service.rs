use std::{
    mem,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{policy::CallsPolicy, reader::HistoryReader};
use crate::{
    body::ReplayBody,
    error::BoxError,
    run::LoopLimits,
    supervise::{Claim, ReadRequest, SupervisedBody, SupervisedFuture},
};

/// The service of a [`LoopGuardLayer`](crate::layers::loop_guard::LoopGuardLayer).
#[derive(Clone, Copy, Debug)]
pub struct LoopGuard<S> {
    inner: S,
    limits: LoopLimits,
    ends: bool,
    max_body: usize,
}

impl<S> LoopGuard<S> {
    pub(super) const fn new(inner: S, limits: LoopLimits, ends: bool, max_body: usize) -> Self {
        Self {
            inner,
            limits,
            ends,
            max_body,
        }
    }
}

/// The response future of [`LoopGuard`].
pub type LoopGuardFuture<S, Q> = SupervisedFuture<ReadRequest<S, Q, HistoryReader>, CallsPolicy>;

/// The response body of [`LoopGuard`].
pub type LoopGuardBody<B> = SupervisedBody<B, CallsPolicy>;

impl<S, Q, B> Service<Request<Q>> for LoopGuard<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes> + 'static,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Response = Response<LoopGuardBody<B>>;
    type Error = BoxError;
    type Future = LoopGuardFuture<S, Q>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let entry = Claim::of_call(&mut request);
        let run = entry.run.clone();
        run.limit_loops(self.limits, self.ends);
        // The clone has not been asked whether it is ready.
        let next = self.inner.clone();
        let service = mem::replace(&mut self.inner, next);
        let max_body = self.max_body;
        SupervisedFuture::new(entry, CallsPolicy::new(), request, |request| {
            ReadRequest::new(service, HistoryReader(run), request, max_body)
        })
    }
}
