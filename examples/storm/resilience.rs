//! `tower-resilience`: its `RetryLayer` with its `AimdBudget`, and its
//! `FallbackLayer` in front of a second service. Each candidate has a budget of
//! its own; retries in retries share one.
//!
//! Its `TokenBucketBudget`, which fills with time as ours does, reads the
//! system's clock: on a simulated one it would never fill, so that it would look
//! stricter than it is. The `AimdBudget` knows no time.

use std::{sync::Arc, time::Duration};

use tower::{BoxError, Layer, ServiceExt, util::BoxCloneSyncService};
use tower_resilience_fallback::{FallbackError, FallbackLayer};
use tower_resilience_retry::{FnInterval, RetryBudget, RetryBudgetBuilder, RetryLayer};

use crate::{
    peers::{Asked, attempt, detached},
    systems::{ATTEMPTS, BACKOFF, FLOOR, MAX_BACKOFF, RATIO, Stack, SystemShape, read},
    upstream::OutageUpstream,
};

pub(crate) fn start(upstream: &OutageUpstream, shape: SystemShape) -> Result<Stack, BoxError> {
    let own = budget()?;
    let first = retries(own.clone()).layer(attempt(upstream, shape.candidates[0]));
    let stack = match shape.candidates.get(1) {
        None => BoxCloneSyncService::new(first),
        Some(model) => {
            let second = retries(budget()?).layer(attempt(upstream, model));
            let stack = FallbackLayer::tower_service(second).layer(first);
            BoxCloneSyncService::new(stack.map_err(either))
        }
    };
    let stack = stack.and_then(read);
    Ok(detached(match shape.nested {
        false => BoxCloneSyncService::new(stack),
        true => BoxCloneSyncService::new(retries(own).layer(stack)),
    }))
}

fn retries<A>(budget: Arc<dyn RetryBudget>) -> RetryLayer<Asked, A, BoxError> {
    RetryLayer::builder()
        .max_attempts(ATTEMPTS as usize)
        .backoff(FnInterval::new(wait))
        .budget(budget)
        .build()
}

fn either(error: FallbackError<BoxError, BoxError>) -> BoxError {
    match error {
        FallbackError::Inner(error) | FallbackError::FallbackFailed(error) => error,
    }
}

/// A success pays for a fifth of a repeat; from one second of our floor to as
/// much as ours piles up, which is ten.
fn budget() -> Result<Arc<dyn RetryBudget>, BoxError> {
    let repeat = (1.0 / RATIO).round() as usize;
    let floor = FLOOR as usize;
    let budget = RetryBudgetBuilder::new()
        .aimd()
        .deposit_amount(1)
        .withdraw_amount(repeat)
        .min_budget(repeat * floor)
        .max_budget(repeat * floor * 10);
    Ok(budget.build()?)
}

/// Its own jitter has no seed; this is ours.
fn wait(attempt: usize) -> Duration {
    let most = BACKOFF
        .saturating_mul(1 << attempt.min(16))
        .min(MAX_BACKOFF);
    most.mul_f64(fastrand::f64())
}
