//! The stack of a plan.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};
use tower::{Layer, Service, ServiceExt, util::BoxCloneService};
use tower_agent::{
    BoxError, Candidate, ClientDisconnectLayer, HardCeilingLayer, HealthGateLayer, LoopGuardLayer,
    ModelFallbackLayer, OwnerCapLayer, OwnerCaps, ProgressNotices, PumpLayer, ReplayBody,
    RetryBudget, RetryBudgetLayer, Run, RunLayer, RunRegistry, StepTimeoutLayer, StopPhraseLayer,
    TerminalResponseLayer, TimeLimitsLayer, TokenCapLayer, TokenCaps, TurnCapLayer,
    attempt::{Count, Jitter},
    run::PauseAtCap,
};

use crate::tests::stacks::{
    plan::{Budget, KeepAlive, Kind, Plan},
    trace::{Event, Trace},
    upstream::PlannedUpstream,
};

pub(crate) type Boxed =
    BoxCloneService<Request<ReplayBody>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

pub(crate) fn boxed<S, B>(service: S) -> Boxed
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let service = service.map_response(|answer: Response<B>| {
        answer.map(|body| body.map_err(Into::into).boxed_unsync())
    });
    BoxCloneService::new(service.map_err(Into::into))
}

const fn ticks(ticks: u64) -> Duration {
    Duration::from_secs(ticks)
}

/// The name of a candidate.
pub(crate) fn model(index: usize) -> String {
    format!("m{index}")
}

pub(crate) fn budget(plan: &Plan) -> RetryBudget {
    let Budget {
        deposit,
        floor,
        every,
        per_error_key,
        per_run,
        hasty,
    } = plan.budget;
    let count = if every { Count::Every } else { Count::Harness };
    let least = if hasty { 0 } else { 100 };
    RetryBudget::new()
        .min_attempt(Duration::from_millis(least))
        .shared(deposit as f64 / 1000.0, floor)
        .per_error_key(per_error_key)
        .per_run(per_run)
        .count(count)
}

pub(crate) fn stack(
    plan: &Plan,
    trace: &Trace,
    registry: &RunRegistry,
    budget: &RetryBudget,
) -> Boxed {
    let between = |inner, place| {
        let here = plan.between.iter().filter(|(at, _)| *at == place);
        here.fold(inner, |inner, (_, layer)| layer.layer(inner))
    };
    let innermost = boxed(PlannedUpstream::new(plan, trace));
    let innermost = between(innermost, plan.layers.len());
    let layers = plan.layers.iter().enumerate().rev();
    let is_pair = |index: usize| plan.fuses && plan.is_pair(index);
    let stack = layers.fold(innermost, |inner, (index, kind)| {
        if index.checked_sub(1).is_some_and(is_pair) {
            // The ceiling makes it too.
            return inner;
        }
        let at = |event: fn(_, _) -> _| kind.tries().then_some((index, event));
        let inner = seen(inner, trace, at(Event::Tried));
        let layered = match *kind {
            Kind::Retry { .. } | Kind::Fallback { .. } => {
                let asked = trace.clone();
                let budget = budget.clone().before_attempt(move |next| {
                    let candidate = next.candidate.map(str::to_owned);
                    asked.push(Event::Willing(index, candidate));
                    true
                });
                trying(kind, budget, inner)
            }
            Kind::Gate {
                every,
                patience,
                silence,
            } => {
                let layer = HealthGateLayer::new(probe(plan, trace)).every(ticks(every));
                let layer = match patience {
                    Some(patience) => layer.patience(ticks(patience)),
                    None => layer,
                };
                let layer = match silence {
                    Some(silence) => layer.watch_silence(ticks(silence)),
                    None => layer,
                };
                boxed(layer.layer(inner))
            }
            _ if is_pair(index) => {
                let step = step(&plan.layers[index + 1]);
                boxed(TimeLimitsLayer::new(ceiling(kind), step).layer(inner))
            }
            _ => supervising(index, kind, registry, trace, inner),
        };
        between(seen(layered, trace, at(Event::Came)), index)
    });
    let layer = match plan.keep_alive {
        Some(keep_alive) => writing(keep_alive),
        None => TerminalResponseLayer::new(),
    };
    // As `AgentStack` does, whose limits all stand within the layer that opens the run.
    let is_gated = matches!(plan.layers.first(), Some(Kind::Run));
    match plan.terminal {
        true => boxed(layer.once_woken(is_gated).layer(stack)),
        false => stack,
    }
}

/// The first of these layers that caps turns.
pub(crate) fn turn_cap(kinds: &[Kind]) -> Option<TurnCapLayer> {
    kinds.iter().find_map(|kind| match *kind {
        Kind::TurnCap(turns) => Some(TurnCapLayer::new(turns)),
        Kind::PausingTurnCap { turns, wait, limit } => {
            let pause = PauseAtCap::new().wait(ticks(wait)).limit(ticks(limit));
            Some(TurnCapLayer::new(turns).pause(pause))
        }
        _ => None,
    })
}

fn writing(asked: KeepAlive) -> TerminalResponseLayer {
    let every = ticks(asked.notices.unwrap_or(0));
    let notices = ProgressNotices::new().after(every).every(every);
    let layer = TerminalResponseLayer::new()
        .notices(notices.at_most(20).quiet(Duration::ZERO))
        .comments(asked.notices.is_some())
        .keep_alive(asked.every.map(ticks));
    match asked.early {
        Some(after) => layer.early_head(ticks(after)),
        None => layer,
    }
}

/// What tells whether the upstream is healthy.
fn probe(plan: &Plan, trace: &Trace) -> BoxCloneService<(), bool, Infallible> {
    let (heals, trace) = (ticks(plan.heals), trace.clone());
    BoxCloneService::new(tower::service_fn(move |()| {
        let healthy = trace.now() >= heals;
        trace.push(Event::Probed(healthy));
        std::future::ready(Ok(healthy))
    }))
}

type Passed = (usize, fn(usize, Option<String>) -> Event);

/// Notes each request that passes, and the node in it.
fn seen(inner: Boxed, trace: &Trace, passed: Option<Passed>) -> Boxed {
    let trace = trace.clone();
    let service = inner.map_request(move |request: Request<ReplayBody>| {
        if let Some(node) = request.extensions().get::<Run>() {
            trace.know(node.clone());
        }
        let candidate = Candidate::of(&request);
        let candidate = candidate.map(|candidate| candidate.label().to_owned());
        if let Some((index, event)) = passed {
            trace.push(event(index, candidate));
        }
        request
    });
    boxed(service)
}

fn trying(kind: &Kind, budget: RetryBudget, inner: Boxed) -> Boxed {
    match *kind {
        Kind::Retry {
            attempts,
            delay,
            jitter,
            hold,
            patience,
        } => {
            // Without a range to choose from the other jitter is exact.
            let jitter = if jitter {
                Jitter::Full
            } else {
                Jitter::Decorrelated
            };
            let budget = budget
                .max_attempts_per_candidate(attempts)
                .delays(ticks(delay), ticks(delay))
                .jitter(jitter)
                .max_retry_after(ticks(patience));
            let layer = RetryBudgetLayer::new(budget);
            let layer = match hold {
                Some(hold) => layer.hold(ticks(hold)),
                None => layer,
            };
            boxed(layer.layer(inner))
        }
        Kind::Fallback { candidates, hold } => {
            let candidates = (0..candidates).map(|index| Candidate::new(model(index)));
            let layer = ModelFallbackLayer::new(candidates).budget(budget);
            let layer = match hold {
                Some(hold) => layer.hold(ticks(hold)),
                None => layer,
            };
            boxed(layer.layer(inner))
        }
        _ => inner,
    }
}

/// The layer of a step window, or of a floor.
fn step(kind: &Kind) -> StepTimeoutLayer {
    let observing = |layer: StepTimeoutLayer, observes| match observes {
        true => layer.observe(),
        false => layer,
    };
    match *kind {
        Kind::Step {
            window,
            first,
            resets_on,
            scope,
            observes,
        } => {
            let layer = StepTimeoutLayer::new(ticks(window)).first(ticks(first));
            observing(layer, observes).resets_on(resets_on).scope(scope)
        }
        Kind::Local(heartbeat, scope) => {
            let layer = StepTimeoutLayer::local().heartbeat(ticks(heartbeat));
            layer.scope(scope)
        }
        Kind::Floor(floor) => {
            let layer = StepTimeoutLayer::optional(None);
            let tokens = floor.bytes as f64 / 4.0;
            let layer = layer.min_tokens_per_second(tokens, ticks(floor.over));
            observing(layer, floor.observes).scope(floor.scope)
        }
        _ => StepTimeoutLayer::optional(None),
    }
}

fn ceiling(kind: &Kind) -> HardCeilingLayer {
    let Kind::Ceiling {
        limit,
        timeout,
        scope,
        observes,
        caller,
    } = *kind
    else {
        return HardCeilingLayer::optional(None);
    };
    let layer = HardCeilingLayer::optional(limit.map(ticks)).timeout(timeout.map(ticks));
    let layer = layer.caller_deadline(caller).scope(scope);
    if observes { layer.observe() } else { layer }
}

fn supervising(
    index: usize,
    kind: &Kind,
    registry: &RunRegistry,
    trace: &Trace,
    inner: Boxed,
) -> Boxed {
    match *kind {
        Kind::Step { .. } | Kind::Local(..) | Kind::Floor(_) => boxed(step(kind).layer(inner)),
        Kind::Ceiling { .. } => boxed(ceiling(kind).layer(inner)),
        Kind::Disconnect(scope) => boxed(ClientDisconnectLayer::new().scope(scope).layer(inner)),
        Kind::Pump(drain) => boxed(PumpLayer::new().drain(drain.map(ticks)).layer(inner)),
        Kind::TurnCap(_) | Kind::PausingTurnCap { .. } => {
            let layer = turn_cap(std::slice::from_ref(kind));
            boxed(layer.unwrap().layer(inner))
        }
        Kind::TokenCap(tokens) => {
            let caps = TokenCaps::new().max_output_tokens(tokens);
            boxed(TokenCapLayer::new(caps).layer(inner))
        }
        Kind::OwnerCap {
            runs,
            turns,
            tokens,
        } => {
            let tokens = TokenCaps::new().max_output_tokens(tokens);
            let caps = OwnerCaps::new().tokens_per_hour(tokens);
            let caps = runs.into_iter().fold(caps, OwnerCaps::max_open_runs);
            let caps = turns.into_iter().fold(caps, OwnerCaps::turns_per_hour);
            boxed(OwnerCapLayer::new(registry.clone(), caps).layer(inner))
        }
        Kind::StopPhrase => boxed(StopPhraseLayer::new(registry.clone(), ["/stop"]).layer(inner)),
        Kind::Loops { stop, observes } => {
            let layer = LoopGuardLayer::new().stop(stop);
            let layer = if observes { layer.observe() } else { layer };
            boxed(layer.layer(inner))
        }
        Kind::Run => {
            let trace = trace.clone();
            let layer = RunLayer::new(registry.clone());
            let layer = layer.on_end(move |summary| trace.summarised(index, summary));
            boxed(layer.layer(inner))
        }
        Kind::Retry { .. } | Kind::Fallback { .. } | Kind::Gate { .. } | Kind::KeepAlive(_) => {
            inner
        }
    }
}
