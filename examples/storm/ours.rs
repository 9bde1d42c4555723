//! The layers of this crate, in the order of its README.

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_agent::{
    Candidate, Cooldowns, ModelFallbackLayer, PumpLayer, RetryBudget, RetryBudgetLayer, RunLayer,
    RunRegistry, StepTimeoutLayer,
};

use crate::{
    systems::{ATTEMPT, ATTEMPTS, BACKOFF, FLOOR, MAX_BACKOFF, RATIO, Stack, SystemShape, read},
    upstream::OutageUpstream,
};

pub(crate) fn start(upstream: &OutageUpstream, shape: SystemShape) -> Result<Stack, BoxError> {
    stack(upstream, shape, None)
}

/// A candidate that has failed is left alone for a while.
pub(crate) fn start_cooled(
    upstream: &OutageUpstream,
    shape: SystemShape,
) -> Result<Stack, BoxError> {
    stack(upstream, shape, Some(Cooldowns::new()))
}

fn stack(
    upstream: &OutageUpstream,
    shape: SystemShape,
    cooldowns: Option<Cooldowns>,
) -> Result<Stack, BoxError> {
    let budget = RetryBudget::new()
        .max_attempts_per_candidate(ATTEMPTS)
        .delays(BACKOFF, MAX_BACKOFF)
        .shared(RATIO, FLOOR)
        // Limits of a run would end it, and lower the load: what is measured is
        // what the shared budget does alone.
        .per_error_key(None)
        .per_run(None);
    let candidates = shape.candidates.iter().copied().map(Candidate::new);
    let mut fallback = ModelFallbackLayer::new(candidates).budget(budget.clone());
    if let Some(cooldowns) = cooldowns {
        fallback = fallback.cooldowns(cooldowns);
    }
    let stack = ServiceBuilder::new()
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(PumpLayer::new())
        .layer(fallback);
    let repeats = RetryBudgetLayer::new(budget);
    let attempt = StepTimeoutLayer::new(ATTEMPT).layer(upstream.clone());
    let once = repeats.layer(attempt);
    Ok(match shape.nested {
        false => whole(stack.service(once)),
        true => whole(stack.service(repeats.layer(once))),
    })
}

/// The stack of a caller who reads answers to their end.
fn whole<S, B>(stack: S) -> Stack
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = BoxError>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    BoxCloneSyncService::new(stack.and_then(read))
}
