mod calls;
mod guards;

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response, request::Parts};
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    util::{BoxCloneSyncService, Oneshot},
};
use tower_agent::{
    BoxError, CallSummary, ClientDisconnectLayer, Cooldowns, HardCeilingLayer, HealthGateLayer,
    ModelFallbackLayer, ProgressNotices, PumpLayer, RetryBudget, RetryBudgetLayer, RunLayer,
    RunRegistry, Scope, StepTimeoutLayer, TerminalReason, TerminalResponseLayer,
    adapter::reqwest::ReqwestService, layers::health_gate::HttpProbe,
};

use self::{
    calls::{Calls, Transport},
    guards::{Guards, Inner},
};
use crate::{
    access::Caller,
    candidates,
    config::{Config, Health, Progress, Retry, RunLimits},
    metrics::Metrics,
    upload,
};

/// The whole gateway as one service: a stack for each agent, and one for other callers.
///
/// The caller's key chooses the stack.
#[derive(Clone, Debug)]
pub(crate) struct Gateway(Arc<Stacks>);

#[derive(Debug)]
struct Stacks {
    of_agents: HashMap<String, Stack>,
    of_others: Stack,
}

type Stack = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

type UpstreamGate = HealthGateLayer<HttpProbe<ReqwestService>>;

/// The parts that all stacks share.
struct StackParts<'a> {
    config: &'a Config,
    registry: RunRegistry,
    metrics: Metrics,
    client: ReqwestService,
    health: Option<UpstreamGate>,
    fallback: ModelFallbackLayer,
    budget: RetryBudget,
}

/// Longer than any limit that a configuration can set.
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl Gateway {
    pub(crate) fn new(
        config: &Config,
        registry: RunRegistry,
        metrics: Metrics,
        cooldowns: &Cooldowns,
    ) -> Result<Self, BoxError> {
        let client = ReqwestService::new(reqwest::Client::builder().tcp_nodelay(true))?;
        let gate = |health| health_gate(health, client.clone());
        let shared = StackParts {
            config,
            registry,
            metrics,
            health: config.health.as_ref().map(gate),
            client: client.clone(),
            fallback: candidates::fallback(config, cooldowns)?,
            budget: candidates::shared(config.retry.shared),
        };
        let of_agents = config.agents.iter().map(|agent| {
            let stack = shared.stack(&agent.run, &agent.retry);
            (agent.name.clone(), stack)
        });
        Ok(Self(Arc::new(Stacks {
            of_agents: of_agents.collect(),
            of_others: shared.stack(&config.run, &config.retry),
        })))
    }
}

impl Service<Request<Body>> for Gateway {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Oneshot<Stack, Request<Body>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let stacks = &*self.0;
        let caller = request.extensions().get::<Caller>();
        let of_agent = caller.and_then(|caller| stacks.of_agents.get(&*caller.name));
        let stack = of_agent.unwrap_or(&stacks.of_others);
        stack.clone().oneshot(request)
    }
}

impl StackParts<'_> {
    fn stack(&self, run: &RunLimits, retry: &Retry) -> Stack {
        // An agent with a shared budget of its own cannot draw from the common one.
        let shared = match retry.shared == self.config.retry.shared {
            true => self.budget.clone(),
            false => candidates::shared(retry.shared),
        };
        let budget = candidates::budget(shared, retry, run.idle_breaker);
        let guarded = match &self.health {
            Some(health) => self.guarded(run, budget, health.layer(self.client.clone())),
            None => self.guarded(run, budget, self.client.clone()),
        };
        let stack = ServiceBuilder::new()
            .layer(responses(self.config.progress).error_status(upload::status))
            .layer(self.runs(run))
            .layer(PumpLayer::new().drain(self.config.drain))
            .layer(ClientDisconnectLayer::new())
            .layer(ceiling(run).caller_deadline(self.config.caller_deadline))
            .layer(step_timeout(run))
            .service(guarded);
        BoxCloneSyncService::new(stack.map_response(|answer| answer.map(Body::new)))
    }

    fn guarded<T: Transport>(&self, run: &RunLimits, budget: RetryBudget, transport: T) -> Inner {
        let attempt = self.config.attempt;
        let guards = Guards {
            config: self.config,
            max_turns: run.max_turns,
            calls: Calls {
                fallback: self.fallback.clone().budget(budget.clone()),
                repeats: repeats(budget, attempt.hold),
                attempt,
                metrics: self.metrics.clone(),
                transport,
            },
        };
        guards.service(&self.registry)
    }

    fn runs(&self, run: &RunLimits) -> RunLayer {
        let metrics = self.metrics.clone();
        let excerpts = self.config.watchdog.as_ref().map_or(0, |it| it.excerpts);
        let layer = RunLayer::new(self.registry.clone())
            .idle(run.idle.unwrap_or(NEVER))
            .keep_partial(run.partial.unwrap_or(0) as usize)
            .keep_excerpts(excerpts as usize)
            .on_end(move |call| {
                metrics.call(call);
                log(call);
            });
        if self.config.auth.is_none() {
            return layer;
        }
        // From the extensions, as `Callers` has removed the key from the headers.
        layer.owner_by(|parts: &Parts| {
            let caller = parts.extensions.get::<Caller>();
            caller.map_or_else(tower_agent::Owner::anonymous, |caller| caller.owner)
        })
    }
}

/// Logs each call that completed, for the operator's bill; the library logs the others.
fn log(call: &CallSummary) {
    if call.reason != TerminalReason::Completed {
        return;
    }
    tracing::info!(
        reason = call.reason.as_str(),
        run = %call.run,
        session = call.session.as_deref(),
        candidate = call.candidate.as_deref(),
        attempts = call.attempts,
        elapsed = ?call.elapsed,
        input_tokens = call.usage.map(|usage| usage.input_tokens),
        output_tokens = call.usage.map(|usage| usage.output_tokens),
        "call ended"
    );
}

fn responses(progress: Option<Progress>) -> TerminalResponseLayer {
    let layer = TerminalResponseLayer::new();
    let Some(says) = progress else {
        return layer;
    };
    let layer = layer.keep_alive(says.keep_alive).comments(says.comments);
    match says.notify_after {
        Some(after) => layer.notices(ProgressNotices::new().after(after)),
        None => layer,
    }
}

fn ceiling(run: &RunLimits) -> HardCeilingLayer {
    let layer = HardCeilingLayer::optional(run.max_turn_time)
        .timeout(run.timeout)
        .scope(Scope::Run);
    match run.observe {
        true => layer.observe(),
        false => layer,
    }
}

const fn step_timeout(run: &RunLimits) -> StepTimeoutLayer {
    let layer = StepTimeoutLayer::optional(run.step_timeout).scope(Scope::Run);
    match run.observe {
        true => layer.observe(),
        false => layer,
    }
}

fn health_gate(health: &Health, client: ReqwestService) -> UpstreamGate {
    let mut layer = HealthGateLayer::get(client, health.url.clone());
    if let Some(authority) = health.url.authority() {
        layer = layer.upstream(authority.clone());
    }
    if let Some(every) = health.every {
        layer = layer.every(every);
    }
    if let Some(timeout) = health.timeout {
        layer = layer.timeout(timeout);
    }
    if let Some(patience) = health.patience {
        layer = layer.patience(patience);
    }
    match health.watch_silence {
        Some(silent) => layer.watch_silence(silent),
        None => layer,
    }
}

const fn repeats(budget: RetryBudget, hold: Option<Duration>) -> RetryBudgetLayer {
    let layer = RetryBudgetLayer::new(budget);
    match hold {
        Some(hold) => layer.hold(hold),
        None => layer,
    }
}
