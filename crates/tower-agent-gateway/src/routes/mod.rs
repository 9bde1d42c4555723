//! The routes: which path is answered by what, and behind which checks.
//!
//! The forwarded operations go to the stacks. What needs no model is answered here: runs, cooldowns,
//! events, metrics, the list of models, and the errors for unknown paths.

mod adjust;
mod bulk;
mod candidates;
mod cooldowns;
mod ends;
mod events;
mod freeze;
mod health;
mod metrics;
mod names;
mod openapi;
mod page;
mod queries;
mod replicas;
mod runs;
mod selection;
mod unknown_route;

use std::{convert::Infallible, fmt, sync::Arc};

use axum::{
    Json, Router,
    extract::{FromRef, Request},
    http::{HeaderValue, Method, header},
    response::Response,
    routing::{MethodRouter, get, post, put},
};
use futures_util::future::{BoxFuture, Either as Forked};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::{
    Layer, Service, ServiceExt,
    layer::util::Identity,
    util::{BoxCloneSyncService, Either, MapResponseLayer, Oneshot, option_layer},
};
use tower_agent::{Cooldowns, RunRegistry, config::CandidateTable};
use tower_http::cors::CorsLayer;

pub(crate) use self::{names::OwnerNames, replicas::answers};

use self::{events::EventFeed, replicas::OtherGateways};
use crate::{
    background::BackgroundTask,
    config::Config,
    http::{
        BufferedUploads, Callers, CheckLayer, HeldBytes, HeldLimits, HostCheck, Operator,
        OriginCheck, UploadLayer, api, cors_layer,
    },
    journal::Journal,
    runs::{Runs, SharedStore},
    stacks::{Gateway, RunAssignment},
    telemetry,
    webhooks::Webhooks,
    websocket::{Bridge, LeaveSignals, is_upgrade},
};

/// The answer at `/`.
const GREETING: &str = "tower-agent-gateway supervises the runs of agents: clients of the OpenAI and \
                        Anthropic APIs call it below /v1; docs/gateway.md, \"Endpoints\", lists its \
                        routes\n";

/// The state that the operator's routes show; a reload of the configuration keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) registry: RunRegistry,
    events: EventFeed,
    pub(crate) cooldowns: Cooldowns,
    /// The bytes of the requests that are read.
    held: HeldBytes,
    /// Whether spans are sent, as the first configuration says.
    pub(crate) is_traced: bool,
    /// The store that the runs share with other gateways.
    pub(crate) peers: Option<SharedStore>,
    /// The attempts and ends of late.
    pub(crate) journal: Journal,
    /// The names of the owners with keys.
    names: OwnerNames,
    /// The candidates of the configuration.
    candidates: Arc<[String]>,
    /// The task that answers those.
    pub(crate) answering: Option<BackgroundTask>,
    /// The receivers of webhooks.
    pub(crate) webhooks: Webhooks,
    /// What makes the sockets of callers close.
    leave: LeaveSignals,
}

impl Watched {
    /// Makes the state, and starts to record metrics.
    pub(crate) fn new(config: &Config, runs: &Runs, reloads: watch::Receiver<u64>) -> Self {
        let registry = runs.registry().clone();
        telemetry::record_metrics();
        let journal = Journal::default();
        let store = runs.peers().map(|peers| peers.settings.fingerprint());
        let webhooks = Webhooks::new(store, journal.clone());
        let dispatcher = webhooks.dispatcher().clone();
        Self {
            events: EventFeed::new(registry.clone(), runs.stopped()),
            registry,
            cooldowns: Cooldowns::new().on_begin(move |cooling| dispatcher.candidate_down(cooling)),
            held: HeldBytes::default(),
            is_traced: config.telemetry.is_some(),
            peers: runs.peers().cloned(),
            journal,
            names: OwnerNames::default(),
            candidates: Arc::default(),
            answering: None,
            webhooks,
            leave: LeaveSignals {
                draining: runs.draining(),
                reloads,
            },
        }
    }

    /// The other gateways; `None` without `[replicas]`.
    fn others(&self) -> Option<OtherGateways> {
        self.peers.clone().map(OtherGateways::new)
    }
}

impl FromRef<Watched> for RunRegistry {
    fn from_ref(watched: &Watched) -> Self {
        watched.registry.clone()
    }
}

/// The routes of one configuration.
#[derive(Clone)]
pub(crate) struct Routes {
    router: Router,
    /// What a POST to a forwarded operation gets, behind the same checks as in `router`.
    ///
    /// Such requests are all but few, and axum's way to them costs three clones and three boxes more.
    forwarded: Forwarded,
}

impl Routes {
    pub(crate) fn answer(&self, request: Request) -> RoutedAnswer {
        let is_forwarded =
            request.method() == Method::POST && api::OPERATIONS.contains(&request.uri().path());
        match is_forwarded {
            true => Forked::Left(self.forwarded.clone().oneshot(request)),
            false => Forked::Right(self.router.clone().oneshot(request)),
        }
    }
}

/// The answer to a request: of a forwarded operation, or of the router.
pub(crate) type RoutedAnswer = Forked<Oneshot<Forwarded, Request>, Oneshot<Router, Request>>;

type Forwarded = BoxCloneSyncService<Request, Response, Infallible>;

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routes")
            .field("router", &self.router)
            .finish_non_exhaustive()
    }
}

/// Builds the routes of one configuration.
pub(crate) fn routes(gateway: Gateway, mut watched: Watched, config: &Config) -> Routes {
    watched.names = OwnerNames::of(config.auth.as_ref());
    let candidates = config.agent.candidate_tables().iter();
    watched.candidates = candidates.map(|it| it.label().to_owned()).collect();
    // One call of `layer` for each group of routes, because axum boxes a route once more per call.
    let open_to = |origins: OriginCheck| {
        (
            CheckLayer(HostCheck),
            UploadLayer::new(config.server.upload_idle),
            CheckLayer(origins),
        )
    };
    let listed = open_to(OriginCheck::Listed(config.cors.clone()));
    let operator = Operator::new(config.control_token.clone());
    let gateway = RunAssignment::new(config.known_agents.clone(), gateway);
    let limits = HeldLimits::new(config.server.max_buffered());
    let calls = BufferedUploads::new(watched.held.clone(), limits, gateway);
    let guard = caller_checks(config);
    let forwarded = BoxCloneSyncService::new((listed.clone(), guard.clone()).layer(calls.clone()));
    let sockets = sockets(calls.clone(), limits, &watched, config);
    let callers = caller_routes(calls, sockets.as_ref(), &watched, config);
    let callers = callers.layer((listed, guard));
    let own = Router::new()
        .route("/", get(|| async { GREETING }))
        .route(
            "/healthz",
            get(health::show).with_state((watched.peers.clone(), watched.registry.clone())),
        )
        .merge(page::routes())
        .method_not_allowed_fallback(unknown_route::method_not_allowed)
        .merge(operator_routes(watched, operator));
    // A path without a route gets the fallback of the callers' routes, behind their checks.
    let own = own.layer(open_to(OriginCheck::Same));
    Routes {
        router: own.merge(callers),
        forwarded,
    }
}

/// The check of callers' keys, within the layer that tells browsers which pages may call.
///
/// The CORS layer stands outside the check of keys: a browser's preflight carries no key.
fn caller_checks(config: &Config) -> CallerChecks {
    let keys = config.auth.as_ref().map(Callers::new).map(CheckLayer);
    let cors = config.cors.as_ref().map(cors_layer);
    (option_layer(cors), option_layer(keys))
}

type CallerChecks = (
    Either<CorsLayer, Identity>,
    Either<CheckLayer<Callers>, Identity>,
);

/// The callers' routes: the forwarded operations, the list of models and, if callers have keys,
/// each caller's own runs.
fn caller_routes(
    calls: impl Service<Request, Response = Response, Error = Infallible, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static,
    sockets: Option<&Arc<Bridge>>,
    watched: &Watched,
    config: &Config,
) -> Router {
    let models = Json(list(config.agent.candidate_tables()));
    let mut app = api::OPERATIONS
        .into_iter()
        .fold(Router::new(), |app, path| {
            let route = axum::routing::post_service(calls.clone());
            match sockets {
                Some(sockets) if path == api::RESPONSES => {
                    app.route(path, route.get(websocket_of(sockets)))
                }
                _ => app.route(path, route),
            }
        })
        .route(api::MODELS, get(|| async move { models }));
    if config.auth.is_some() {
        let own = Router::new()
            .route("/v1/runs/{id}", get(runs::show_own))
            .route("/v1/runs/{id}/abort", post(runs::abort_own))
            .route("/v1/runs/{id}/complete", post(runs::complete_own))
            .route("/v1/sessions/{id}/abort", post(runs::abort_own_session));
        app = app.merge(own.with_state(watched.clone()));
    }
    // Inside of the check of keys: only a caller with a key is told which routes there are.
    app.fallback(unknown_route::not_found)
        .method_not_allowed_fallback(unknown_route::method_not_allowed)
}

/// The bridge of WebSockets to `calls`, unless the configuration switches it off.
fn sockets(
    calls: impl Service<Request, Response = Response, Error = Infallible, Future: Send>
    + Clone
    + Send
    + Sync
    + 'static,
    limits: HeldLimits,
    watched: &Watched,
    config: &Config,
) -> Option<Arc<Bridge>> {
    let mut leave = watched.leave.clone();
    leave.reloads.mark_unchanged();
    Some(Arc::new(Bridge {
        service: BoxCloneSyncService::new(calls),
        settings: config.server.websocket?,
        held: watched.held.clone(),
        limits,
        keep_alive: config.server.keep_alive,
        response_keep_alive: config.agent.keep_alive(),
        upload_idle: config.server.upload_idle,
        leave,
    }))
}

/// Answers a GET: with an upgrade, or with 405.
fn websocket_of(
    sockets: &Arc<Bridge>,
) -> impl Fn(Request) -> BoxFuture<'static, Response> + Clone + Send + Sync + 'static {
    let sockets = Arc::clone(sockets);
    move |request| {
        if is_upgrade(request.headers()) {
            return Box::pin(Arc::clone(&sockets).upgrade(request));
        }
        Box::pin(unknown_route::no_get(request))
    }
}

/// The operator's routes, which act across owners.
fn operator_routes(watched: Watched, operator: Operator) -> Router {
    let routes = operator_table(watched).into_iter();
    routes
        .fold(Router::new(), |app, (path, route)| app.route(path, route))
        .method_not_allowed_fallback(unknown_route::method_not_allowed)
        .layer((MapResponseLayer::new(never_stored), CheckLayer(operator)))
}

/// Tells browsers and proxies to keep no copy: the answers are about one instant, and for the operator
/// alone. A stream of events says for itself what proxies need to hear.
fn never_stored(mut answer: Response) -> Response {
    let no_store = HeaderValue::from_static("no-store");
    let control = answer.headers_mut().entry(header::CACHE_CONTROL);
    control.or_insert(no_store);
    answer
}

/// The operator's routes by their paths; `openapi.json` describes them.
fn operator_table(watched: Watched) -> Vec<(&'static str, MethodRouter)> {
    let Watched {
        registry,
        cooldowns,
        held,
        peers,
        webhooks,
        ..
    } = watched.clone();
    let of_runs = vec![
        ("/runs", get(runs::list)),
        ("/runs/{id}", get(runs::show)),
        ("/runs/{id}/wait", get(runs::wait)),
        ("/runs/{id}/abort", post(runs::abort)),
        ("/runs/{id}/complete", post(runs::complete)),
        ("/runs/{id}/pause", post(adjust::pause)),
        ("/runs/{id}/resume", post(adjust::resume)),
        ("/runs/{id}/extend", post(adjust::extend)),
        ("/sessions/{id}/abort", post(runs::abort_session)),
        ("/abort", post(bulk::abort)),
        (
            "/freeze",
            get(freeze::show).put(freeze::freeze).delete(freeze::thaw),
        ),
        (
            "/freeze/{owner}",
            put(freeze::freeze_owner).delete(freeze::thaw_owner),
        ),
        ("/ends", get(ends::show)),
        ("/candidates", get(candidates::list)),
        ("/events", get(events::events)),
    ];
    let of_runs = of_runs.into_iter();
    let of_runs = of_runs.map(|(path, route)| (path, route.with_state(watched.clone())));
    let clear = post(cooldowns::clear).with_state(cooldowns.clone());
    of_runs
        .chain([
            (
                "/metrics",
                get(metrics::show).with_state((registry, held, peers, webhooks)),
            ),
            ("/cooldowns", get(cooldowns::list).with_state(cooldowns)),
            ("/cooldowns/{candidate}/clear", clear),
            ("/openapi.json", get(openapi::show)),
        ])
        .collect()
}

/// The list of models, with the fields of both dialects, for every SDK.
fn list(candidates: &[CandidateTable]) -> Value {
    let entries: Vec<Value> = candidates
        .iter()
        .map(|candidate| {
            json!({
                "id": candidate.label(),
                "root": candidate.model,
                "object": "model",
                "type": "model",
                "display_name": candidate.label(),
                "created": 0,
                "created_at": "1970-01-01T00:00:00Z",
                "owned_by": "tower-agent",
                "context_window": candidate.context_window,
            })
        })
        .collect();
    json!({
        "object": "list",
        "data": entries,
        "has_more": false,
        "first_id": candidates.first().map(CandidateTable::label),
        "last_id": candidates.last().map(CandidateTable::label),
    })
}

#[cfg(test)]
mod tests {
    //! covers: H11

    use std::collections::BTreeSet;

    use super::*;

    /// A path on one side alone fails here; a method, in `tests/gateway/operator.rs`.
    #[tokio::test]
    async fn the_description_has_the_operators_paths_and_no_others() {
        let text = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"";
        let config = Config::parse(text, "test").unwrap();
        let (_reloads, reloaded) = watch::channel(0);
        let watched = Watched::new(&config, &Runs::new(), reloaded);
        let routed: BTreeSet<_> = operator_table(watched).iter().map(|it| it.0).collect();
        let described: Value = serde_json::from_str(openapi::OPENAPI).unwrap();
        let paths = described["paths"].as_object().unwrap().iter();
        let of_operator = paths.filter(|(_, item)| {
            let mut operations = item.as_object().unwrap().values();
            operations.any(|operation| operation["tags"][0] == "operator")
        });
        let described: BTreeSet<_> = of_operator.map(|(path, _)| path.as_str()).collect();
        assert_eq!(routed, described);
    }
}
