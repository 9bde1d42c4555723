//! Candidates that are left alone for a while after they failed.
//!
//! covers: F6

mod alone;
mod committed;
mod neutral;
mod probes;
mod whose;
mod windows;

use std::time::Duration;

use tower::Layer;
use tower_agent::{
    Candidate, Cooldowns, ModelFallbackLayer, layers::model_fallback::ModelFallback,
};

use super::{asks, at, from, models, of_account};
use crate::support::{Upstream, healthy, secs};

const INSTANT: Duration = Duration::from_nanos(1);

fn minutes(minutes: u64) -> Duration {
    secs(60 * minutes)
}

/// Cooldowns with exact windows: no call probes before their end.
fn unprobed() -> Cooldowns {
    Cooldowns::new().probe(secs(30), Duration::ZERO)
}

fn two_accounts() -> [Candidate; 2] {
    [of_account("a", "one"), of_account("b", "two")]
}

/// Candidates around an upstream that serves, unless it plays another script for a model.
fn cooled<const N: usize>(
    cooldowns: &Cooldowns,
    candidates: [Candidate; N],
) -> (ModelFallback<Upstream>, Upstream) {
    let upstream = Upstream::script(healthy());
    let layer = ModelFallbackLayer::new(candidates).cooldowns(cooldowns.clone());
    (layer.layer(upstream.clone()), upstream)
}
