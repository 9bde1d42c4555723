use axum::body::{Body, Bytes};
use http::{Request, Response};
use tower::{
    BoxError, Service, ServiceBuilder, ServiceExt, filter::FilterLayer, util::BoxCloneSyncService,
};
use tower_agent::{
    HardCeilingLayer, ModelFallbackLayer, RetryBudgetLayer, StepTimeoutLayer,
    adapter::reqwest::ReqwestService,
};

use super::NEVER;
use crate::{
    candidates,
    config::AttemptLimits,
    metrics::{AttemptsLayer, Metrics},
};

/// The parts of the stack that make a call: candidates and their attempts.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) fallback: ModelFallbackLayer,
    pub(super) repeats: RetryBudgetLayer,
    pub(super) attempt: AttemptLimits,
    pub(super) metrics: Metrics,
    pub(super) client: ReqwestService,
}

/// A service whose layers the configuration chooses.
pub(super) type Inner<Q> = BoxCloneSyncService<Request<Q>, Response<Body>, BoxError>;

impl Calls {
    /// Builds the service, for the caller's body or a buffered one.
    pub(super) fn service<Q>(&self) -> Inner<Q>
    where
        Q: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let service = ServiceBuilder::new()
            .layer(FilterLayer::new(candidates::may_be_json::<Q>))
            .layer(self.fallback.clone())
            .layer(self.repeats.clone())
            .layer(AttemptsLayer(self.metrics.clone()))
            .layer(HardCeilingLayer::optional(self.attempt.max_time))
            .layer(step_timeout(&self.attempt))
            .service(self.client.clone());
        boxed(service)
    }
}

const fn step_timeout(limits: &AttemptLimits) -> StepTimeoutLayer {
    match (limits.step_timeout, limits.first_token_timeout) {
        (Some(step), Some(first)) => StepTimeoutLayer::new(step).first(first),
        (None, Some(first)) => StepTimeoutLayer::new(NEVER).first(first),
        (step, None) => StepTimeoutLayer::optional(step),
    }
}

pub(super) fn boxed<S, Q, B>(service: S) -> Inner<Q>
where
    S: Service<Request<Q>, Response = Response<B>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    Q: 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    BoxCloneSyncService::new(service.map_response(|answer| answer.map(Body::new)))
}
