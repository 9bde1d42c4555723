//! Replicas: registries, stores and servers that share one Redis.

use std::{
    ops::Range,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::task::{AbortHandle, JoinHandle};
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneService};
use tower_agent::{
    BoxError, HardCeilingLayer, Owner, OwnerCapLayer, OwnerCaps, Run, RunId, RunLayer, RunRegistry,
    Scope, TerminalReason, TerminalResponseLayer, TokenCapLayer, TokenCaps, TurnCapLayer,
    layers::run_store::RunStoreLayer,
    registry::{AbortOutcome, Calendar, CalendarPeriod, UtcCalendar},
};
use tower_agent_redis::{RedisOptions, RedisRunStore};

use crate::{
    server::{Server, secret, until},
    support::{DONE, FINISH, Outcome, PRELUDE, Script, Upstream, chat, prompt, secs, with_header},
};

pub(crate) type Service =
    BoxCloneService<Request<Full<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

/// What the servers of a test are set to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) turns: u32,
    /// The cap on output tokens.
    pub(crate) tokens: Option<u32>,
    pub(crate) owner: Option<OwnerCaps>,
    pub(crate) ceiling: Duration,
    pub(crate) idle: Duration,
    /// How long a request waits for the store: long, so that a machine under load refuses nothing.
    pub(crate) wait: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            turns: 1000,
            tokens: None,
            owner: None,
            ceiling: secs(600),
            idle: secs(600),
            wait: secs(5),
        }
    }
}

impl Settings {
    pub(crate) fn tokens(tokens: u32) -> Self {
        Self {
            tokens: Some(tokens),
            ..Self::default()
        }
    }

    pub(crate) fn owner(caps: OwnerCaps) -> Self {
        Self {
            owner: Some(caps),
            ..Self::default()
        }
    }

    pub(crate) fn turns(turns: u32) -> Self {
        Self {
            turns,
            ..Self::default()
        }
    }
}

/// One process of several.
pub(crate) struct Replica {
    pub(crate) registry: RunRegistry,
    pub(crate) store: Arc<RedisRunStore>,
    pub(crate) service: Service,
    pub(crate) upstream: Upstream,
    listener: AbortHandle,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// UTC on one day: no test passes midnight.
#[derive(Debug)]
struct OneDay;

impl Calendar for OneDay {
    fn bounds(&self, period: CalendarPeriod, at: SystemTime) -> Range<SystemTime> {
        UtcCalendar.bounds(period, at)
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + secs(1_795_910_400)
    }
}

pub(crate) fn id(text: &str) -> RunId {
    text.parse().unwrap()
}

impl Replica {
    pub(crate) async fn new(url: &str, script: Script, settings: Settings) -> Self {
        Self::with(url, script, settings, RedisOptions::new()).await
    }

    pub(crate) async fn with(
        url: &str,
        script: Script,
        settings: Settings,
        options: RedisOptions,
    ) -> Self {
        let store = RedisRunStore::connect(url, &secret(), options)
            .await
            .unwrap();
        let upstream = Upstream::script(script);
        let registry = RunRegistry::new().share(Arc::clone(&store) as Arc<_>);
        registry.set_calendar(OneDay);
        let runs = RunLayer::new(registry.clone()).idle(settings.idle);
        let turns = TurnCapLayer::new(settings.turns);
        let tokens = TokenCapLayer::new(TokenCaps::new().max_output_tokens(settings.tokens));
        let asks = RunStoreLayer::new(&runs).turns(&turns).tokens(&tokens);
        let owners = OwnerCapLayer::optional(registry.clone(), settings.owner);
        let asks = asks.owners(&owners).wait(settings.wait);
        let service = ServiceBuilder::new()
            .layer(TerminalResponseLayer::new())
            .layer(asks)
            .layer(runs)
            .layer(owners)
            .layer(HardCeilingLayer::new(settings.ceiling).scope(Scope::Run))
            .layer(turns)
            .layer(tokens)
            .service(upstream.clone());
        let service = service.map_response(|answer| answer.map(BodyExt::boxed_unsync));
        Self {
            service: BoxCloneService::new(service.map_err(Into::into)),
            listener: tokio::spawn(registry.listen()).abort_handle(),
            registry,
            store,
            upstream,
        }
    }

    pub(crate) async fn ask(&self, run: &str) -> Outcome {
        self.send(with_header(prompt("a"), "x-run-id", run)).await
    }

    /// A request that is a run of its own.
    pub(crate) async fn unnamed(&self) -> Outcome {
        self.send(prompt("a")).await
    }

    pub(crate) fn spawn_unnamed(&self) -> JoinHandle<Outcome> {
        self.spawn_request(prompt("a"))
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Outcome {
        Outcome::of(self.service.clone().oneshot(request)).await
    }

    pub(crate) fn spawn(&self, run: &str) -> JoinHandle<Outcome> {
        self.spawn_request(with_header(prompt("a"), "x-run-id", run))
    }

    pub(crate) fn spawn_request(&self, request: Request<Full<Bytes>>) -> JoinHandle<Outcome> {
        tokio::spawn(Outcome::of(self.service.clone().oneshot(request)))
    }

    pub(crate) fn run(&self, run: &str) -> Option<Run> {
        self.registry.get(Owner::anonymous(), &id(run))
    }

    pub(crate) fn abort(&self, run: &str) -> AbortOutcome {
        self.registry.abort(Owner::anonymous(), &id(run))
    }

    pub(crate) fn reason(&self, run: &str) -> Option<TerminalReason> {
        self.run(run)?.terminal_reason()
    }

    /// Waits until the store has taken what this replica told.
    pub(crate) async fn told(&self) {
        until("the news are taken", || self.store.stats().waiting == 0).await;
    }

    /// Waits until the upstream has had so many calls.
    pub(crate) async fn called(&self, calls: usize) {
        until("the upstream is called", || self.upstream.calls() >= calls).await;
    }

    /// Waits until the run has ended here.
    pub(crate) async fn ended(&self, run: &str) -> TerminalReason {
        until("the run ends", || self.reason(run).is_some()).await;
        self.reason(run).unwrap()
    }
}

pub(crate) async fn replicas<const N: usize>(
    server: &Server,
    script: &Script,
    settings: Settings,
) -> [Replica; N] {
    let mut replicas = Vec::new();
    for _ in 0..N {
        replicas.push(Replica::new(&server.url(), script.clone(), settings).await);
    }
    replicas.try_into().ok().unwrap()
}

/// The reason that the caller got: in a header, if the run ended before the answer's head.
pub(crate) fn reason_of(outcome: &Outcome) -> Option<TerminalReason> {
    let header = outcome.header("x-terminal-reason");
    let reason = outcome.reason.clone();
    reason.or_else(|| header.map(|name| name.parse().unwrap()))
}

pub(crate) fn endless() -> Script {
    let said = Script::sse().data(PRELUDE);
    said.repeat(10_000, 0.02, chat("a"))
}

pub(crate) fn slow(seconds: f64) -> Script {
    let said = Script::sse().data(PRELUDE).data(chat("a"));
    said.wait(seconds).data(FINISH).data(DONE)
}
