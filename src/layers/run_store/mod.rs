//! Asks other replicas about a request's run before the request finds it here.
//!
//! The layer belongs just outside of the [`RunLayer`], whose sources of ids it uses;
//! [`AgentStack`](crate::AgentStack) puts it there if its registry is
//! [shared](crate::RunRegistry::share). A run that has ended elsewhere refuses the request, without
//! an upstream call. A run that was opened elsewhere is opened here with its age, so that its
//! ceiling counts from its first opening. If a [`TurnCapLayer`] further in caps the request, the
//! layer asks for its turn with the same question, and if an
//! [`OwnerCapLayer`] does, for its share of the owner's hour. With a fallback
//! layer that is sticky, the answer also has the candidates of the request's session.
//!
//! # What asks
//!
//! A request asks once, and waits at most 50 ms for the answer, if it names a run, by an id or by a
//! [`RequestRun`](crate::layers::run::RequestRun), that this registry does not hold, or if it is a
//! turn under a cap, or if a [`TokenCapLayer`] further in has caps. A request without a run's id asks
//! once about its owner, if a cap of the owner holds for it: one on open runs if it opens a run, one
//! on turns if it is a turn, one on tokens in any case. A request that carries a `Run` asks nothing.
//!
//! # Without an answer
//!
//! If the store does not answer in time, the request goes on: its run has the cap on turns of this
//! replica, less the turns of which the store has told, and its ends are told once the store is
//! back. Caps of an owner hold for what this replica has counted, with what it learned of the others
//! in the last hour. With [`refuse_unanswered`](RunStoreLayer::refuse_unanswered) a request that would open a
//! run under a cap is refused instead, as `peers_lost` with status 503.
//!
//! # Cancel safety
//!
//! Dropping the future drops the question, or the inner future. A turn that the store has granted
//! meanwhile stays this replica's, for the next request of the run; what it has granted of the
//! owner's caps is given back.
//!
//! # Examples
//!
//! ```
//! use tower::ServiceBuilder;
//! use tower_agent::{
//!     RunLayer, RunRegistry, TurnCapLayer,
//!     layers::run_store::RunStoreLayer, registry::store::InMemoryRunStore,
//! };
//!
//! let registry = RunRegistry::new().share(InMemoryRunStore::new().replica());
//! let (runs, turns) = (RunLayer::new(registry), TurnCapLayer::new(30));
//! let layers = ServiceBuilder::new()
//!     .layer(RunStoreLayer::new(&runs).turns(&turns))
//!     .layer(runs)
//!     .layer(turns);
//! ```

mod question;
mod service;

pub use self::service::{SharedRuns, SharedRunsFuture};

use std::{fmt, sync::Arc, time::Duration};

use tower_layer::Layer;

use crate::{
    layers::{
        model_fallback::{ModelFallbackLayer, StickySessions},
        owner_cap::OwnerCapLayer,
        run::RunLayer,
        token_cap::TokenCapLayer,
        turn_cap::TurnCapLayer,
    },
    registry::OwnerCaps,
};

/// How long a request waits for the store by default.
const WAIT: Duration = Duration::from_millis(50);

/// Asks the store of a shared registry about a request's run: see the [module](self).
#[derive(Clone)]
pub struct RunStoreLayer {
    runs: RunLayer,
    turns: Option<TurnCapLayer>,
    caps_tokens: bool,
    sessions: Option<Arc<StickySessions>>,
    owners: Option<OwnerCaps>,
    wait: Duration,
    refuses: bool,
}

impl RunStoreLayer {
    /// Makes the layer for the registry and the sources of ids of `runs`, the layer just inside.
    #[must_use]
    pub fn new(runs: &RunLayer) -> Self {
        Self {
            runs: runs.clone(),
            turns: None,
            caps_tokens: false,
            sessions: None,
            owners: None,
            wait: WAIT,
            refuses: false,
        }
    }

    /// Asks for the turns that `turns`, an inner layer, caps.
    #[must_use]
    pub fn turns(mut self, turns: &TurnCapLayer) -> Self {
        self.turns = Some(turns.clone());
        self
    }

    /// Asks what other replicas have spent, if `tokens`, an inner layer, has caps.
    #[must_use]
    pub const fn tokens(mut self, tokens: &TokenCapLayer) -> Self {
        self.caps_tokens = tokens.is_capped();
        self
    }

    /// Asks what other replicas have counted for the request's owner, if `owners`, a layer further
    /// in, has caps.
    #[must_use]
    pub const fn owners(mut self, owners: &OwnerCapLayer) -> Self {
        self.owners = owners.caps();
        self
    }

    /// Shares the cooldowns and the sticky sessions of `fallback`, an inner layer, with the other
    /// replicas.
    ///
    /// Call it with the layer as it is in the stack, and after
    /// [`RunRegistry::share`](crate::RunRegistry::share). The program runs
    /// [`listen`](crate::RunRegistry::listen).
    #[must_use]
    pub fn fallback(mut self, fallback: &ModelFallbackLayer) -> Self {
        fallback.share_with(self.runs.registry());
        self.sessions = fallback.sessions().cloned();
        self
    }

    /// How long a request waits for the store's answer; 50 ms by default.
    #[must_use]
    pub const fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// Refuses a request that would open a run under a cap on turns while the store does not answer.
    ///
    /// The reason is `peers_lost`, with status 503. By default the run has the cap to itself.
    #[must_use]
    pub const fn refuse_unanswered(mut self) -> Self {
        self.refuses = true;
        self
    }

    /// The layer with its settings, in a stack with these inner layers.
    pub(crate) fn within(
        self,
        runs: &RunLayer,
        turns: &TurnCapLayer,
        tokens: &TokenCapLayer,
        owners: &OwnerCapLayer,
        fallback: Option<&ModelFallbackLayer>,
    ) -> Self {
        let runs = runs.clone();
        let layer = Self { runs, ..self }.turns(turns).tokens(tokens);
        let layer = layer.owners(owners);
        match fallback {
            Some(fallback) => layer.fallback(fallback),
            None => layer,
        }
    }

    /// Whether there is a store to ask.
    pub(crate) fn is_shared(&self) -> bool {
        self.runs.registry().is_shared()
    }
}

/// Without the settings of the inner layers, which print them themselves.
impl fmt::Debug for RunStoreLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunStoreLayer")
            .field("wait", &self.wait)
            .field("refuses", &self.refuses)
            .finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RunStoreLayer {
    type Service = SharedRuns<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SharedRuns::new(inner, Arc::new(self.clone()))
    }
}
