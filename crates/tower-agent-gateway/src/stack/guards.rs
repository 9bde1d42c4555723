use axum::body::{Body, Bytes};
use http::{Request, Response};
use tower::{
    BoxError, Layer, Service, ServiceBuilder, ServiceExt,
    layer::util::{Identity, Stack},
    util::BoxCloneSyncService,
};
use tower_agent::{
    LoopGuardLayer, OwnerCapLayer, OwnerCaps, ReplayBody, RunRegistry, StopPhraseLayer,
    TurnCapLayer,
};

use super::calls::Calls;
use crate::config::{Auth, Config, Loops};

/// The layers that may refuse a call or end its run, around the calls.
#[derive(Debug)]
pub(super) struct Guards<'a> {
    pub(super) config: &'a Config,
    pub(super) max_turns: Option<u32>,
    pub(super) calls: Calls,
}

/// A service whose layers the configuration chooses.
type Inner = BoxCloneSyncService<Request<Body>, Response<Body>, BoxError>;

/// Caps of owners around caps of runs. A cap that the configuration leaves out is inert.
type Caps = ServiceBuilder<Stack<TurnCapLayer, Stack<OwnerCapLayer, Identity>>>;

impl Guards<'_> {
    /// Builds the guards, with stop phrases outermost: a phrase is no turn, and works at a cap.
    ///
    /// The ceilings stand outside of it, because it reads a body that may arrive slowly. Stop
    /// phrases and the loop guard buffer the body, so they are left out if they are off.
    pub(super) fn service(&self, registry: &RunRegistry) -> Inner {
        let caps = self.caps(registry);
        let stop = self.config.stop.as_ref();
        let stop = stop.map(|phrases| StopPhraseLayer::new(registry.clone(), phrases));
        match (stop, self.config.loops.as_ref().map(loop_guard)) {
            (None, None) => boxed(caps.service(self.calls.service::<Body>())),
            (None, Some(loops)) => boxed(
                caps.layer(loops)
                    .service(self.calls.service::<ReplayBody>()),
            ),
            (Some(stop), None) => {
                boxed(stop.layer(caps.service(self.calls.service::<ReplayBody>())))
            }
            (Some(stop), Some(loops)) => boxed(
                stop.layer(
                    caps.layer(loops)
                        .service(self.calls.service::<ReplayBody>()),
                ),
            ),
        }
    }

    fn caps(&self, registry: &RunRegistry) -> Caps {
        let owners = self.config.auth.as_ref().and_then(owner_caps);
        ServiceBuilder::new()
            .layer(OwnerCapLayer::optional(registry.clone(), owners))
            .layer(TurnCapLayer::optional(self.max_turns))
    }
}

fn boxed<S, B>(service: S) -> Inner
where
    S: Service<Request<Body>, Response = Response<B>, Error = BoxError, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    BoxCloneSyncService::new(service.map_response(|answer| answer.map(Body::new)))
}

fn loop_guard(limits: &Loops) -> LoopGuardLayer {
    let layer = LoopGuardLayer::new()
        .warn(limits.warn)
        .stop(limits.stop)
        .unknown_tool(limits.unknown_tool)
        .any_tool(limits.any_tool)
        .polls(limits.polls.iter().map(String::as_str));
    let layer = match limits.exact_results {
        true => layer.exact_results(),
        false => layer,
    };
    match limits.observe {
        true => layer.observe(),
        false => layer,
    }
}

/// Reads the caps of an owner; `None` if none is set.
fn owner_caps(auth: &Auth) -> Option<OwnerCaps> {
    let caps = OwnerCaps::new();
    let caps = auth
        .max_open_runs
        .map_or(caps, |runs| caps.max_open_runs(runs));
    let caps = auth
        .turns_per_hour
        .map_or(caps, |turns| caps.turns_per_hour(turns));
    (caps != OwnerCaps::new()).then_some(caps)
}
