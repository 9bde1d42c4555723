use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use tower::{ServiceBuilder, ServiceExt, filter::FilterLayer, util::BoxCloneSyncService};
use tower_agent::{
    BoxError, CallSummary, ClientDisconnectLayer, HardCeilingLayer, PumpLayer, RetryBudget,
    RetryBudgetLayer, RunLayer, RunRegistry, Scope, StepTimeoutLayer, TerminalResponseLayer,
    adapter::reqwest::ReqwestService,
};

use crate::{
    candidates,
    config::{AttemptLimits, Config},
};

/// The whole gateway as one service.
pub(crate) type Gateway =
    BoxCloneSyncService<Request<Body>, Response<Body>, std::convert::Infallible>;

/// Longer than any limit that a configuration can set.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

pub(crate) fn gateway(config: &Config, registry: RunRegistry) -> Result<Gateway, BoxError> {
    let Config { run, attempt, .. } = config;
    let budget = candidates::budget(&config.retry, run.idle_breaker);
    let client = ReqwestService::new(reqwest::Client::builder().tcp_nodelay(true))?;
    let stack = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(registry).on_end(log))
        .layer(PumpLayer::new(config.pump_frames.get()).drain(config.drain))
        .layer(ClientDisconnectLayer::new())
        .layer(
            ceiling(run.max_turn_time)
                .timeout(run.timeout)
                .caller_deadline(config.caller_deadline)
                .scope(Scope::Run),
        )
        .layer(StepTimeoutLayer::optional(run.step_timeout).scope(Scope::Run))
        .layer(FilterLayer::new(candidates::may_be_json))
        .layer(candidates::fallback(config, budget.clone())?)
        .layer(repeats(budget, attempt.hold))
        .layer(ceiling(attempt.max_time))
        .layer(step_timeout(attempt))
        .service(client);
    Ok(BoxCloneSyncService::new(
        stack.map_response(|answer| answer.map(Body::new)),
    ))
}

/// One line a call, for whoever pays.
fn log(call: &CallSummary) {
    tracing::info!(
        run = %call.run,
        reason = %call.reason,
        candidate = call.candidate.as_deref(),
        attempts = call.attempts,
        input_tokens = call.usage.map(|usage| usage.input_tokens),
        output_tokens = call.usage.map(|usage| usage.output_tokens),
        elapsed = ?call.elapsed,
        "call ended"
    );
}

const fn ceiling(limit: Option<Duration>) -> HardCeilingLayer {
    HardCeilingLayer::optional(limit)
}

const fn repeats(budget: RetryBudget, hold: Option<Duration>) -> RetryBudgetLayer {
    let layer = RetryBudgetLayer::new(budget);
    match hold {
        Some(hold) => layer.hold(hold),
        None => layer,
    }
}

const fn step_timeout(limits: &AttemptLimits) -> StepTimeoutLayer {
    match (limits.step_timeout, limits.first_token_timeout) {
        (Some(step), Some(first)) => StepTimeoutLayer::new(step).first(first),
        (None, Some(first)) => StepTimeoutLayer::new(NEVER).first(first),
        (step, None) => StepTimeoutLayer::optional(step),
    }
}
