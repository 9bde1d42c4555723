//! The same limits in the layers of this crate.

use std::net::SocketAddr;

use axum::{Router, body::Body};
use http::{Request, Uri};
use tower::{ServiceBuilder, ServiceExt};
use tower_agent::{
    BoxError, Candidate, HardCeilingLayer, ModelFallbackLayer, PumpLayer, RetryBudget,
    RetryBudgetLayer, RunLayer, RunRegistry, Scope, StepTimeoutLayer, TerminalResponseLayer,
};
use tower_agent_reqwest::ReqwestService;

use crate::{situations::StackLimits, upstream};

/// A server of it in front of `upstream`.
pub(crate) async fn start(
    upstream: SocketAddr,
    limits: StackLimits,
) -> Result<SocketAddr, BoxError> {
    let budget = RetryBudget::new()
        .max_attempts_per_candidate(limits.attempts)
        .delays(limits.backoff, limits.backoff * 4);
    let base_url: Uri = format!("http://{upstream}/v1").parse()?;
    let candidates = limits
        .models
        .iter()
        .map(|model| Candidate::new(*model).base_url(base_url.clone()))
        .collect::<Result<Vec<_>, _>>()?;
    let client = reqwest::Client::builder().no_proxy();
    let stack = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(PumpLayer::new())
        .layer(HardCeilingLayer::new(limits.total))
        .layer(StepTimeoutLayer::new(limits.turn).scope(Scope::Run))
        .layer(ModelFallbackLayer::new(candidates).budget(budget.clone()))
        .layer(RetryBudgetLayer::new(budget))
        .layer(StepTimeoutLayer::new(limits.attempt))
        .service(ReqwestService::new(client)?)
        .map_request(|request: Request<Body>| request)
        .map_response(|answer| answer.map(Body::new));
    Ok(upstream::serve(Router::new().fallback_service(stack)).await?)
}
