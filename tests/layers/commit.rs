//! What both layers hold of an answer until its commit, and what they do not.

mod bounds;
mod dialects;
mod failures;
mod stops;
mod streams;
mod whole;

use std::time::Duration;

use tower::Layer;
use tower_agent::{Candidate, ModelFallbackLayer, RetryBudgetLayer};

use crate::support::{Script, StackService, Upstream, no_delay};

/// Both layers that hold an answer to its commit, each around an upstream that plays
/// `scripts`, with a second attempt to make. They must not differ in it.
pub(crate) fn hold_stacks<const N: usize>(scripts: [Script; N]) -> [(Upstream, StackService); 2] {
    hold_stacks_for(scripts, None)
}

/// The same with a limit to how long an answer is held.
pub(crate) fn hold_stacks_for<const N: usize>(
    scripts: [Script; N],
    hold: Option<Duration>,
) -> [(Upstream, StackService); 2] {
    let mut retry = RetryBudgetLayer::new(no_delay());
    let mut fallback = ModelFallbackLayer::new(["m", "n"].map(Candidate::new));
    if let Some(hold) = hold {
        (retry, fallback) = (retry.hold(hold), fallback.hold(hold));
    }
    let [first, second] = [scripts.clone(), scripts].map(Upstream::scripts);
    let retry = StackService::new(retry.layer(first.clone()));
    let fallback = StackService::new(fallback.layer(second.clone()));
    [(first, retry), (second, fallback)]
}
