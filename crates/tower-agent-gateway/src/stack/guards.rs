use axum::body::{Body, Bytes};
use tower::Layer;
use tower_agent::{
    BoxError, LoopGuardLayer, OwnerCapLayer, OwnerCaps, ReplayBody, RunRegistry, StopPhraseLayer,
    TurnCapLayer,
};

use super::calls::{Calls, Inner, boxed};
use crate::config::{Auth, Config, Loops};

/// The layers that may refuse a call or end its run, around the calls.
///
/// A guard that the configuration leaves out is not in the stack.
#[derive(Debug)]
pub(super) struct Guards<'a> {
    pub(super) config: &'a Config,
    pub(super) max_turns: Option<u32>,
    pub(super) calls: Calls,
}

impl Guards<'_> {
    /// Builds the guards, with stop phrases outermost: a phrase is no turn, and works at a cap.
    ///
    /// The ceilings stand outside of it, because it reads a body that may arrive slowly.
    pub(super) fn service(&self, registry: &RunRegistry) -> Inner<Body> {
        match &self.config.stop {
            Some(phrases) => {
                let layer = StopPhraseLayer::new(registry.clone(), phrases);
                boxed(layer.layer(self.owner_caps::<ReplayBody>(registry)))
            }
            None => self.owner_caps::<Body>(registry),
        }
    }

    fn owner_caps<Q>(&self, registry: &RunRegistry) -> Inner<Q>
    where
        Q: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let inner = self.turns();
        match self.config.auth.as_ref().and_then(owner_caps) {
            Some(caps) => boxed(OwnerCapLayer::new(registry.clone(), caps).layer(inner)),
            None => inner,
        }
    }

    fn turns<Q>(&self) -> Inner<Q>
    where
        Q: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let inner = self.loops();
        match self.max_turns {
            Some(turns) => boxed(TurnCapLayer::new(turns).layer(inner)),
            None => inner,
        }
    }

    fn loops<Q>(&self) -> Inner<Q>
    where
        Q: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        match &self.config.loops {
            Some(limits) => boxed(loop_guard(limits).layer(self.calls.service::<ReplayBody>())),
            None => self.calls.service(),
        }
    }
}

const fn loop_guard(limits: &Loops) -> LoopGuardLayer {
    let layer = LoopGuardLayer::new()
        .warn(limits.warn)
        .stop(limits.stop)
        .unknown_tool(limits.unknown_tool)
        .any_tool(limits.any_tool);
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
