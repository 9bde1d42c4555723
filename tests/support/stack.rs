//! The layers around an upstream.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower::{Layer, Service};
use tower_agent::{
    BoxError, Candidate, ClientDisconnectLayer, HardCeilingLayer, ModelFallbackLayer, PumpLayer,
    ReplayBody, RetryBudget, RetryBudgetLayer, RunLayer, RunRegistry, StepTimeoutLayer,
    TerminalResponseLayer, TurnCapLayer,
};

use super::{Upstream, clock::secs, request_body::Upload, service::StackService};

/// A retry budget without delays, so that times show nothing but the waits of a test.
pub(crate) fn no_delay() -> RetryBudget {
    RetryBudget::new().delays(Duration::ZERO, Duration::ZERO)
}

/// Where a layer stands, from the outside in: the order of the crate's docs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Outermost,
    Terminal,
    Run,
    Pump,
    Disconnect,
    Ceiling,
    Step,
    StopPhrase,
    OwnerCap,
    TurnCap,
    TokenCap,
    LoopGuard,
    Progress,
    Fallback,
    Retry,
    AttemptCeiling,
    AttemptStep,
    Gate,
    Innermost,
}

type Wrap = Arc<dyn Fn(StackService) -> StackService + Send + Sync>;

/// Builds a stack of layers in the documented order, in whole seconds.
///
/// Each setter adds one layer; the order of the calls does not matter, and a second call
/// for the same place replaces the first. A stack in another order is built from
/// `ServiceBuilder`, or from [`StackService::new`] layer by layer.
#[derive(Clone, Default)]
pub(crate) struct Stack {
    layers: BTreeMap<Place, Wrap>,
    candidates: Option<Vec<Candidate>>,
    budget: Option<RetryBudget>,
}

impl Stack {
    /// Adds `TerminalResponseLayer`.
    pub(crate) fn terminal(self) -> Self {
        self.layer(Place::Terminal, TerminalResponseLayer::new())
    }

    /// Adds `RunLayer` with this registry.
    pub(crate) fn run(self, registry: &RunRegistry) -> Self {
        self.layer(Place::Run, RunLayer::new(registry.clone()))
    }

    /// Adds `PumpLayer`.
    pub(crate) fn pump(self) -> Self {
        self.layer(Place::Pump, PumpLayer::new())
    }

    /// Adds `ClientDisconnectLayer`.
    pub(crate) fn disconnect(self) -> Self {
        self.layer(Place::Disconnect, ClientDisconnectLayer::new())
    }

    /// Adds `HardCeilingLayer` around the call.
    pub(crate) fn ceiling(self, seconds: u64) -> Self {
        self.layer(Place::Ceiling, HardCeilingLayer::new(secs(seconds)))
    }

    /// Adds `StepTimeoutLayer` around the call.
    pub(crate) fn step(self, seconds: u64) -> Self {
        self.layer(Place::Step, StepTimeoutLayer::new(secs(seconds)))
    }

    /// Adds `TurnCapLayer`.
    pub(crate) fn turn_cap(self, turns: u32) -> Self {
        self.layer(Place::TurnCap, TurnCapLayer::new(turns))
    }

    /// Adds `ModelFallbackLayer` with these models.
    ///
    /// It shares the budget of [`retry`](Self::retry) or [`budget`](Self::budget), if one
    /// of them was called.
    pub(crate) fn candidates<'a>(self, models: impl IntoIterator<Item = &'a str>) -> Self {
        self.fallback(models.into_iter().map(Candidate::new))
    }

    /// Adds `ModelFallbackLayer` with these candidates, as [`candidates`](Self::candidates).
    pub(crate) fn fallback(mut self, candidates: impl IntoIterator<Item = Candidate>) -> Self {
        self.candidates = Some(candidates.into_iter().collect());
        self
    }

    /// Adds `RetryBudgetLayer`: so many attempts of a candidate, without delays.
    pub(crate) fn retry(self, attempts: u32) -> Self {
        self.budget(no_delay().max_attempts_per_candidate(attempts))
    }

    /// Adds `RetryBudgetLayer` with this budget.
    pub(crate) fn budget(mut self, budget: RetryBudget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// Adds `HardCeilingLayer` around each attempt.
    pub(crate) fn attempt_ceiling(self, seconds: u64) -> Self {
        self.layer(Place::AttemptCeiling, HardCeilingLayer::new(secs(seconds)))
    }

    /// Adds `StepTimeoutLayer` around each attempt.
    pub(crate) fn attempt_step(self, seconds: u64) -> Self {
        self.layer(Place::AttemptStep, StepTimeoutLayer::new(secs(seconds)))
    }

    /// Adds a layer of any kind at this place: for a setter that no method here has, and
    /// for layers of other crates.
    pub(crate) fn layer<L, S, B>(mut self, place: Place, layer: L) -> Self
    where
        L: Layer<StackService, Service = S> + Send + Sync + 'static,
        S: Service<
                Request<ReplayBody>,
                Response = Response<B>,
                Error: Into<BoxError>,
                Future: Send + 'static,
            > + Service<
                Request<Upload>,
                Response = Response<B>,
                Error: Into<BoxError>,
                Future: Send + 'static,
            > + Clone
            + Send
            + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let wrap = move |inner| StackService::new(layer.layer(inner));
        self.layers.insert(place, Arc::new(wrap));
        self
    }

    /// The layers around this upstream. Each call builds new layers; budgets and
    /// registries that the test passed are shared.
    pub(crate) fn build(&self, upstream: &Upstream) -> StackService {
        self.around(StackService::new(upstream.clone()))
    }

    /// The layers around any service: `StackService::new(service_fn(..))`.
    pub(crate) fn around(&self, inner: StackService) -> StackService {
        let mut stack = self.clone();
        if let Some(candidates) = stack.candidates.take() {
            let layer = ModelFallbackLayer::new(candidates);
            let layer = match &stack.budget {
                Some(budget) => layer.budget(budget.clone()),
                None => layer,
            };
            stack = stack.layer(Place::Fallback, layer);
        }
        if let Some(budget) = stack.budget.take() {
            stack = stack.layer(Place::Retry, RetryBudgetLayer::new(budget));
        }
        let layers = stack.layers.into_values().rev();
        layers.fold(inner, |inner, wrap| wrap(inner))
    }
}

impl fmt::Debug for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<_> = self.layers.keys().collect();
        f.debug_struct("Stack")
            .field("layers", &places)
            .field("candidates", &self.candidates)
            .field("budget", &self.budget)
            .finish()
    }
}
