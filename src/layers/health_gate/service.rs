use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{body::ProbedBody, gate::Gate, passage::Passage, policy::GatePolicy};
use crate::{
    body::ReplayBody,
    error::BoxError,
    supervise::{Claim, SupervisedBody, SupervisedFuture},
};

/// The service of a [`HealthGateLayer`](crate::layers::health_gate::HealthGateLayer).
pub struct HealthGate<S, P> {
    inner: S,
    gate: Arc<Gate<P>>,
}

impl<S, P> HealthGate<S, P> {
    pub(super) fn new(inner: S, gate: Gate<P>) -> Self {
        let gate = Arc::new(gate);
        Self { inner, gate }
    }
}

/// The response future of [`HealthGate`].
pub type HealthGateFuture<S, P, Q, B> = SupervisedFuture<Passage<S, P, Q, B>, GatePolicy>;

/// The response body of [`HealthGate`].
pub type HealthGateBody<B, P> = SupervisedBody<ProbedBody<B, P>, GatePolicy>;

impl<S, P, Q, B> Service<Request<Q>> for HealthGate<S, P>
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    P: Service<(), Response = bool> + Clone,
    Q: Body<Data = Bytes> + 'static,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Response = Response<HealthGateBody<B, P>>;
    type Error = BoxError;
    type Future = HealthGateFuture<S, P, Q, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let claim = Claim::of(&mut request);
        let run = claim.run.clone();
        // Only the original was polled ready; the clone takes its place.
        let next = self.inner.clone();
        let service = mem::replace(&mut self.inner, next);
        let gate = Arc::clone(&self.gate);
        SupervisedFuture::new(claim, GatePolicy, request, |request| {
            Passage::new(service, gate, run, request)
        })
    }
}

impl<S: Clone, P> Clone for HealthGate<S, P> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            gate: Arc::clone(&self.gate),
        }
    }
}

impl<S: fmt::Debug, P> fmt::Debug for HealthGate<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthGate")
            .field("inner", &self.inner)
            .field("gate", &self.gate)
            .finish()
    }
}
