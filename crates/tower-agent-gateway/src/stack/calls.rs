use axum::body::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::{BoxError, Service, ServiceBuilder, filter::FilterLayer};
use tower_agent::{
    HardCeilingLayer, ModelFallbackLayer, ReplayBody, RetryBudgetLayer, StepTimeoutLayer,
};

use super::NEVER;
use crate::{
    candidates,
    config::AttemptLimits,
    metrics::{AttemptsLayer, Metrics},
};

/// A service that sends an attempt to its upstream.
pub(super) trait Transport:
    Service<
        Request<ReplayBody>,
        Response = Response<<Self as Transport>::Answer>,
        Error = BoxError,
        Future: Send,
    > + Clone
    + Send
    + Sync
    + 'static
{
    /// The body of an answer.
    type Answer: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static;
}

impl<S, B> Transport for S
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Answer = B;
}

/// The parts of the stack that make a call: candidates and their attempts.
#[derive(Debug)]
pub(super) struct Calls<T> {
    pub(super) fallback: ModelFallbackLayer,
    pub(super) repeats: RetryBudgetLayer,
    pub(super) attempt: AttemptLimits,
    pub(super) metrics: Metrics,
    /// The innermost service, which sends an attempt.
    pub(super) transport: T,
}

impl<T: Transport> Calls<T> {
    /// Builds the service, for the caller's body or a buffered one.
    pub(super) fn service<Q>(
        &self,
    ) -> impl Service<
        Request<Q>,
        Response = Response<impl Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static>,
        Error = BoxError,
        Future: Send,
    > + Clone
    + Send
    + Sync
    + 'static
    where
        Q: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        ServiceBuilder::new()
            .layer(FilterLayer::new(candidates::may_be_json::<Q>))
            .layer(self.fallback.clone())
            .layer(self.repeats.clone())
            .layer(AttemptsLayer(self.metrics.clone()))
            .layer(ceiling(&self.attempt))
            .layer(step_timeout(&self.attempt))
            .service(self.transport.clone())
    }
}

const fn ceiling(limits: &AttemptLimits) -> HardCeilingLayer {
    let layer = HardCeilingLayer::optional(limits.max_time);
    match limits.observe {
        true => layer.observe(),
        false => layer,
    }
}

const fn step_timeout(limits: &AttemptLimits) -> StepTimeoutLayer {
    let windows = (limits.step_timeout, limits.first_token_timeout);
    let layer = match (limits.heartbeat, windows) {
        (Some(heartbeat), _) => StepTimeoutLayer::local().heartbeat(heartbeat),
        (None, (Some(step), Some(first))) => StepTimeoutLayer::new(step).first(first),
        (None, (None, Some(first))) => StepTimeoutLayer::new(NEVER).first(first),
        (None, (step, None)) => StepTimeoutLayer::optional(step),
    };
    match limits.observe {
        true => layer.observe(),
        false => layer,
    }
}
