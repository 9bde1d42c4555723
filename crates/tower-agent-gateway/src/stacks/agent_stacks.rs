use std::{
    collections::HashMap,
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use axum::body::{Body, Bytes};
use http::{Request, Response, request::Parts};
use tower::{
    BoxError, Layer, Service, ServiceExt,
    util::{BoxCloneSyncService, Oneshot},
};
use tower_agent::{
    AgentStack, CallSummary, Candidate, Cooldowns, HealthGateLayer, OwnerCaps, ReplayBody,
    RunLayer, RunRegistry, TerminalReason, layers::health_gate::HttpProbe, stack::Server,
};
use tower_agent_hyper::HyperService;
use tracing::Level;

use super::{
    missing_path::MissingPath, stack_generations::StackGenerations,
    upstream_socket::UpstreamSockets,
};
use crate::{
    config::{Config, Health, Replicas},
    http::{Caller, owner_of, stall_status},
    http_client::{Roots, http_client, upgrade_client},
    journal::Journal,
    telemetry::{TraceParent, name_attempt},
};

/// The whole gateway as one service: a stack for each agent, and one for other callers.
///
/// The caller's key chooses the stack.
///
/// Clones share the stacks: a request that reaches this service after a
/// [`replace`](StackGenerations::replace) gets the new ones, unless its run began with earlier ones.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    pub(crate) stacks: Arc<StackGenerations<Stacks>>,
}

/// The stacks of one configuration.
#[derive(Debug)]
pub(crate) struct Stacks {
    of_agents: HashMap<String, Stack>,
    of_others: Stack,
    /// Whether callers have keys, which name the owners of their runs.
    pub(crate) has_keys: bool,
}

type Stack = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

type UpstreamGate = HealthGateLayer<HttpProbe<HyperService>>;

impl Stacks {
    pub(crate) fn new(
        config: &Config,
        registry: &RunRegistry,
        cooldowns: &Cooldowns,
        replicas: Option<&Replicas>,
        journal: &Journal,
        is_traced: bool,
    ) -> Result<Self, BoxError> {
        let urls = config.agent.candidate_tables().iter();
        let roots = Roots::of(urls.map(|candidate| candidate.base_url.get()));
        let client = http_client(&config.proxy, roots)?;
        let threads = config.server.threads.unwrap_or(0);
        let clients = (0..=threads).map(|_| client.with_own_connections());
        let attempt = move |request: Request<ReplayBody>| match is_traced {
            true => name_attempt(request),
            false => request,
        };
        let mut candidates = config.candidates.iter();
        let has_sockets = candidates.any(Candidate::speaks_websocket);
        let upgrades = has_sockets.then(|| upgrade_client(&config.proxy, roots));
        let sockets = UpstreamSockets::new(clients.collect(), upgrades.transpose()?);
        let upstream = MissingPath::new(sockets).map_request(attempt);
        // A probe does not wait behind the streams of calls.
        let gate = |health: &Health| {
            let client = http_client(&config.proxy, Roots::of([&health.url]))?;
            Ok::<_, BoxError>(health_gate(health, client))
        };
        let gate = config.health.as_ref().map(gate).transpose()?;
        let service = |stack: &AgentStack<Server>| match &gate {
            Some(gate) => boxed(stack.service(gate.layer(upstream.clone())), is_traced),
            None => boxed(stack.service(upstream.clone()), is_traced),
        };
        let fallback = config.agent.fallback(config.candidates.clone(), cooldowns);
        let stack = AgentStack::server(registry)
            .fallback(fallback.json_only())
            .limits(&config.agent)
            .always_count()
            .responses(|layer| layer.error_status(stall_status))
            .runs(|layer| runs(layer, config, journal.clone()));
        let stack = match replicas {
            Some(replicas) => stack.run_store(|layer| replicas.layer(layer)),
            None => stack,
        };
        let capped = |stack: AgentStack<Server>, caps: Option<OwnerCaps>| match caps
            .filter(|caps| *caps != OwnerCaps::new())
        {
            Some(caps) => stack.owner_caps(caps),
            None => stack,
        };
        let caps = |name: Option<&str>| {
            let auth = config.auth.as_ref()?;
            let own = name.and_then(|name| auth.caps_of.get(name));
            Some(*own.unwrap_or(&auth.caps))
        };
        let noted = |stack: AgentStack<Server>| {
            let journal = journal.clone();
            stack.after_attempt(move |tried| journal.tried(tried))
        };
        let of_agent = |name: &str| {
            let stack = stack.clone().for_agent(&config.agent, name);
            let stack = capped(stack, caps(Some(name)));
            (name.to_owned(), service(&noted(stack)))
        };
        Ok(Self {
            of_agents: config.agent.agents().map(of_agent).collect(),
            of_others: service(&noted(capped(stack.clone(), caps(None)))),
            has_keys: config.auth.is_some(),
        })
    }
}

impl Gateway {
    pub(crate) fn new(stacks: Stacks, registry: &RunRegistry) -> Self {
        let stacks = Arc::new(StackGenerations::new(stacks, registry.clone()));
        Self { stacks }
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
        let stacks = self.stacks.of(&request);
        let caller = request.extensions().get::<Caller>();
        let of_agent = caller.and_then(|caller| stacks.of_agents.get(&*caller.name));
        let stack = of_agent.unwrap_or(&stacks.of_others);
        stack.clone().oneshot(request)
    }
}

fn boxed<S, B>(service: S, is_traced: bool) -> Stack
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let service = TraceParent::new(service, is_traced);
    BoxCloneSyncService::new(service.map_response(|answer| answer.map(Body::new)))
}

fn runs(layer: RunLayer, config: &Config, journal: Journal) -> RunLayer {
    let excerpts = config.watchdog.as_ref().map_or(0, |it| it.excerpts);
    let layer = layer.keep_excerpts(excerpts as usize);
    let layer = layer.on_end(move |call| {
        journal.ended(call);
        log(call);
    });
    layer.owner_by(|parts: &Parts| owner_of(&parts.extensions, &parts.headers))
}

/// Logs each call that completed, for the operator's bill; the library logs the others.
///
/// The library logs these at DEBUG. If a subscriber takes that level, the library's line is the one.
fn log(call: &CallSummary) {
    let is_logged = || tracing::event_enabled!(target: "tower_agent", Level::DEBUG);
    if call.reason != TerminalReason::Completed || is_logged() {
        return;
    }
    tracing::info!(
        target: "tower_agent",
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

fn health_gate(health: &Health, client: HyperService) -> UpstreamGate {
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
