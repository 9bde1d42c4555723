//! tower's own `Retry`, as its documentation shows it, and the fallback that is
//! then written by hand. Each candidate has a budget of its own; retries in
//! retries share one.

use std::{sync::Arc, time::Duration};

use tower::{
    BoxError, Service, ServiceExt,
    retry::{
        Policy, Retry,
        backoff::{Backoff, ExponentialBackoff, ExponentialBackoffMaker, MakeBackoff},
        budget::{Budget, TpsBudget},
    },
    service_fn,
    util::{BoxCloneSyncService, rng::HasherRng},
};

use crate::{
    load::secs,
    peers::{Answer, Asked, attempt, detached},
    systems::{ATTEMPTS, BACKOFF, FLOOR, MAX_BACKOFF, RATIO, Stack, SystemShape, read},
    upstream::OutageUpstream,
};

/// The hasher is the standard one with fixed keys, so that the same storm comes
/// twice.
type Rng = HasherRng<std::hash::BuildHasherDefault<std::hash::DefaultHasher>>;

pub(crate) fn start(upstream: &OutageUpstream, shape: SystemShape) -> Result<Stack, BoxError> {
    Ok(detached(stack(upstream, shape, true)?))
}

/// In the caller's task: what the caller drops is dropped.
pub(crate) fn start_in_line(
    upstream: &OutageUpstream,
    shape: SystemShape,
) -> Result<Stack, BoxError> {
    stack(upstream, shape, true)
}

pub(crate) fn start_unlimited(
    upstream: &OutageUpstream,
    shape: SystemShape,
) -> Result<Stack, BoxError> {
    Ok(detached(stack(upstream, shape, false)?))
}

#[derive(Clone)]
struct RetryOnError {
    budget: Option<Arc<TpsBudget>>,
    backoff: ExponentialBackoff<Rng>,
    left: u32,
}

impl RetryOnError {
    fn new(limited: bool) -> Result<Self, BoxError> {
        let rng = Rng::with_hasher(Default::default());
        let backoff = ExponentialBackoffMaker::new(BACKOFF, MAX_BACKOFF, 0.5, rng)?.make_backoff();
        let ttl: Duration = secs(10);
        Ok(Self {
            budget: limited.then(|| Arc::new(TpsBudget::new(ttl, FLOOR, RATIO as f32))),
            backoff,
            left: ATTEMPTS - 1,
        })
    }
}

impl<A> Policy<Asked, A, BoxError> for RetryOnError {
    type Future = tokio::time::Sleep;

    fn retry(&mut self, _: &mut Asked, result: &mut Result<A, BoxError>) -> Option<Self::Future> {
        let budget = self.budget.as_ref();
        if result.is_ok() {
            if let Some(budget) = budget {
                budget.deposit();
            }
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        let paid = budget.is_none_or(|budget| budget.withdraw());
        paid.then(|| self.backoff.next_backoff())
    }

    fn clone_request(&mut self, request: &Asked) -> Option<Asked> {
        Some(request.clone())
    }
}

fn stack(upstream: &OutageUpstream, shape: SystemShape, limited: bool) -> Result<Stack, BoxError> {
    let mut candidates = Vec::new();
    let mut agent = None;
    for model in shape.candidates {
        let retries = RetryOnError::new(limited)?;
        agent = shape.nested.then(|| retries.clone());
        candidates.push(Retry::new(retries, attempt(upstream, model)));
    }
    let stack = service_fn(move |request| fallback(candidates.clone(), request)).and_then(read);
    Ok(match agent {
        None => BoxCloneSyncService::new(stack),
        Some(retries) => BoxCloneSyncService::new(Retry::new(retries, stack)),
    })
}

/// Asks one candidate after the other until one answers.
async fn fallback<S>(candidates: Vec<S>, request: Asked) -> Result<Answer, BoxError>
where
    S: Service<Asked, Response = Answer, Error = BoxError>,
{
    let mut last = Err("no candidate".into());
    for candidate in candidates {
        last = candidate.oneshot(request.clone()).await;
        if last.is_ok() {
            break;
        }
    }
    last
}
