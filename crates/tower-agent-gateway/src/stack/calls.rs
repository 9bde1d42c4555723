use axum::body::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::{BoxError, Service, ServiceBuilder, filter::FilterLayer};
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

impl Calls {
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
            .layer(HardCeilingLayer::optional(self.attempt.max_time))
            .layer(step_timeout(&self.attempt))
            .service(self.client.clone())
    }
}

const fn step_timeout(limits: &AttemptLimits) -> StepTimeoutLayer {
    match (limits.step_timeout, limits.first_token_timeout) {
        (Some(step), Some(first)) => StepTimeoutLayer::new(step).first(first),
        (None, Some(first)) => StepTimeoutLayer::new(NEVER).first(first),
        (step, None) => StepTimeoutLayer::optional(step),
    }
}
