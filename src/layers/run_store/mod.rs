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

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tokio::time::{Timeout, timeout};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    attempt::generates,
    error::BoxError,
    layers::{
        model_fallback::{ModelFallbackLayer, StickySessions},
        owner_cap::OwnerCapLayer,
        run::{RunLayer, RunName},
        token_cap::TokenCapLayer,
        turn_cap::TurnCapLayer,
    },
    registry::{
        AskedOwner, AskedRun, OwnerAsk, OwnerCaps, RunRegistry,
        store::{
            OwnerQuestion, Recalled, RunEnd, RunKey, RunQuestion, RunStore, StoreFuture, StoreLost,
            TurnsAsked,
        },
    },
    run::{ReasonClass, Run, RunId, SharedRun, TerminalReason, TurnUnderWay},
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

    /// Asks for the turns that `turns`, a layer further in, caps.
    #[must_use]
    pub fn turns(mut self, turns: &TurnCapLayer) -> Self {
        self.turns = Some(turns.clone());
        self
    }

    /// Asks what other replicas have spent, if `tokens`, a layer further in, has caps.
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

    /// Shares the cooldowns and the sticky sessions of `fallback`, a layer further in, with the other
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

    /// The layer with its settings, in a stack with these layers further in.
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

/// Without the settings of the layers further in, which print them themselves.
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
        SharedRuns {
            inner,
            layer: Arc::new(self.clone()),
        }
    }
}

/// The service of a [`RunStoreLayer`]; a clone of it shares the settings.
#[derive(Clone, Debug)]
pub struct SharedRuns<S> {
    inner: S,
    layer: Arc<RunStoreLayer>,
}

impl<S, Q, B> Service<Request<Q>> for SharedRuns<S>
where
    S: Service<Request<Q>, Response = Response<B>, Error: Into<BoxError>> + Clone,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = SharedRunsFuture<S, Q>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        if !self.layer.is_shared() {
            let future = self.inner.call(request);
            return SharedRunsFuture {
                stage: Stage::Calling { future },
            };
        }
        let registry = self.layer.runs.registry();
        let store = registry.store().cloned();
        let (question, request) = self.layer.question(request);
        let Some((asked, store)) = question.zip(store) else {
            let future = self.inner.call(request);
            return SharedRunsFuture {
                stage: Stage::Calling { future },
            };
        };
        // The service that was polled ready takes the call; a clone of it stays for later calls.
        let next = self.inner.clone();
        let service = mem::replace(&mut self.inner, next);
        let Asked {
            question,
            run,
            owner,
        } = asked;
        let call = Call {
            service,
            request,
            layer: Arc::clone(&self.layer),
            run,
            owner,
        };
        let answer = timeout(self.layer.wait, question.ask(store));
        SharedRunsFuture {
            stage: Stage::Asking {
                answer,
                call: Some(call),
            },
        }
    }
}

/// The one question of a request.
enum StoreQuestion {
    /// About its run, and maybe about the run's owner.
    Run(RunQuestion),
    Owner(OwnerQuestion),
}

impl StoreQuestion {
    fn ask(self, store: Arc<dyn RunStore>) -> StoreFuture<Result<Recalled, StoreLost>> {
        match self {
            Self::Run(question) => store.ask(question),
            Self::Owner(question) => Box::pin(async {
                let owner = Some(store.ask_owner(question).await?);
                Ok(Recalled {
                    owner,
                    ..Recalled::default()
                })
            }),
        }
    }
}

/// A question of a request, and what it is about.
struct Asked {
    question: StoreQuestion,
    run: Option<RunAsk>,
    owner: Option<OwnerAsk>,
}

/// What a question about a run is about.
#[derive(Debug)]
struct RunAsk {
    run: RunKey,
    turns: Option<TurnsAsked>,
    part: Arc<SharedRun>,
    turn: Option<TurnUnderWay>,
    /// Whether the registry holds the run.
    is_open: bool,
}

impl RunStoreLayer {
    /// The question that the request needs; `None` if it needs none.
    fn question<Q>(&self, request: Request<Q>) -> (Option<Asked>, Request<Q>) {
        let registry = self.runs.registry();
        // A registry that closes would refuse the request, and its turn would be lost to the others.
        let is_asked = registry.is_shared() && !registry.is_closed();
        if !is_asked || request.extensions().get::<Run>().is_some() {
            return (None, request);
        }
        let is_turn = self.owners.is_some() && generates(&request);
        let (named, request) = self.runs.named(request);
        let Some(named) = named else {
            return (None, request);
        };
        let owner = named.owner;
        let (known, request) = match named.id.clone() {
            Some(id) => {
                let run = RunKey { owner, id };
                match self.run_question(named, run, request) {
                    (Some(known), request) => (known, request),
                    (None, request) => return (None, request),
                }
            }
            None => (KnownRun::default(), request),
        };
        let caps = self.owners.map(|caps| (registry.count_owners(), caps));
        let owner =
            caps.and_then(|(owners, caps)| owners.ask(owner, caps, !known.is_open, is_turn));
        let (owner_question, owner) = owner.unzip();
        let asked = match (known.asks, owner_question) {
            (Some((mut question, run)), owner_question) => {
                question.owner = owner_question;
                Some((StoreQuestion::Run(question), Some(run)))
            }
            (None, Some(question)) => Some((StoreQuestion::Owner(question), None)),
            (None, None) => None,
        };
        let asked = asked.map(|(question, run)| Asked {
            question,
            run,
            owner,
        });
        (asked, request)
    }

    /// The question about the run of a request, if there is one. `None` for a run that has ended, of
    /// which nothing is asked.
    fn run_question<Q>(
        &self,
        named: RunName,
        run: RunKey,
        request: Request<Q>,
    ) -> (Option<KnownRun>, Request<Q>) {
        let registry = self.runs.registry();
        let held = registry.get(run.owner, &run.id);
        let end = held.as_ref().and_then(Run::terminal_reason);
        if end.is_some_and(|reason| reason != TerminalReason::Completed) {
            return (None, request);
        }
        let is_open = held.is_some_and(|run| run.terminal_reason().is_none());
        let (cap, request) = match &self.turns {
            Some(turns) => turns.cap_for(request),
            None => (None, request),
        };
        let part = registry.part(&run);
        let part = part.filter(|part| {
            // What has ended elsewhere is heard, once the store knows the part.
            cap.is_some() || self.caps_tokens || !is_open || part.incarnation().is_none()
        });
        let Some(part) = part else {
            return (
                Some(KnownRun {
                    asks: None,
                    is_open,
                }),
                request,
            );
        };
        let (turns, turn) = cap
            .map(|cap| {
                let (needed, turn) = part.begin_turn();
                let turns = TurnsAsked {
                    number: needed.number,
                    taken: needed.taken,
                    want: needed.want,
                    cap,
                };
                (turns, turn)
            })
            .unzip();
        let question = RunQuestion {
            run: run.clone(),
            part: part.part,
            session: named.session,
            parent: named.parent,
            turns,
            is_sticky: self.sessions.is_some(),
            owner: None,
        };
        let ask = RunAsk {
            run,
            turns,
            part,
            turn,
            is_open,
        };
        let asks = Some((question, ask));
        (Some(KnownRun { asks, is_open }), request)
    }
}

/// What a registry knows of a request's run.
#[derive(Default)]
struct KnownRun {
    asks: Option<(RunQuestion, RunAsk)>,
    /// Whether the registry holds the run, so that the request opens none.
    is_open: bool,
}

/// A request that waits for the store.
#[derive(Debug)]
struct Call<S, Q> {
    service: S,
    request: Request<Q>,
    layer: Arc<RunStoreLayer>,
    run: Option<RunAsk>,
    owner: Option<OwnerAsk>,
}

impl<S, Q> Call<S, Q>
where
    S: Service<Request<Q>>,
{
    /// Calls the inner service with what the store answered.
    ///
    /// # Errors
    ///
    /// The end of the run, or of its parent, if it has ended elsewhere.
    fn make(mut self, answer: Result<Recalled, StoreLost>) -> Result<S::Future, BoxError> {
        if let Some(mut ask) = self.owner {
            if let Some((counts, recalled)) =
                answer.as_ref().ok().and_then(|it| Some((it.owner?, it)))
            {
                ask.learn(counts, recalled.is_held_elsewhere);
            }
            // Beyond this function the ask is the caps', or is given back.
            self.request.extensions_mut().insert(AskedOwner::new(ask));
        }
        if let (Some(sessions), Ok(recalled)) = (&self.layer.sessions, &answer) {
            sessions.learn(&recalled.candidates);
        }
        if let Some(ask) = self.run {
            let registry = self.layer.runs.registry();
            let asked = ask.answered(answer, registry, self.layer.refuses)?;
            self.request.extensions_mut().insert(asked);
        }
        Ok(self.service.call(self.request))
    }
}

impl RunAsk {
    /// What the request knows of its run with this answer.
    ///
    /// # Errors
    ///
    /// The end of the run, or of its parent; or there is no answer, and the layer `refuses` then.
    fn answered(
        self,
        answer: Result<Recalled, StoreLost>,
        registry: &RunRegistry,
        refuses: bool,
    ) -> Result<AskedRun, BoxError> {
        let mut age = Duration::ZERO;
        match answer {
            Ok(recalled) => {
                if let Some(end) = recalled.end {
                    // The request asks no more: what waits for that may close the run.
                    drop(self.turn);
                    registry.end_as_told(&self.run, recalled.incarnation, &end);
                    return Err(end.refusal(self.run.id, recalled.age).into());
                }
                if let Some(end) = recalled.parent_end.filter(|_| !self.is_open) {
                    return Err(end.refusal(self.run.id, Duration::ZERO).into());
                }
                self.part.learn(recalled.incarnation);
                if let Some(turns) = self.turns {
                    let (granted, elsewhere) = (recalled.granted, recalled.turns_elsewhere);
                    self.part.learn_turns(turns.number, granted, elsewhere);
                }
                self.part.learn_spent(recalled.spent_elsewhere);
                age = recalled.age;
            }
            Err(StoreLost) => {
                if let Some(turns) = self.turns {
                    if refuses && !self.is_open {
                        return Err(peers_lost(self.run.id));
                    }
                    self.part.grant_alone(turns.want, turns.cap);
                }
            }
        }
        Ok(AskedRun::new(self.part, age, self.turn))
    }
}

/// The refusal of a request while the other replicas are lost.
fn peers_lost(run: RunId) -> BoxError {
    let (class, status) = (ReasonClass::Failure, StatusCode::SERVICE_UNAVAILABLE);
    let reason = TerminalReason::custom("peers_lost", class, status);
    RunEnd::new(reason).refusal(run, Duration::ZERO).into()
}

pin_project! {
    /// The response future of [`SharedRuns`].
    ///
    /// # Errors
    ///
    /// The future returns a [`Terminated`](crate::Terminated) if the run has ended elsewhere, and
    /// else the inner error.
    #[must_use = "futures do nothing unless polled"]
    pub struct SharedRunsFuture<S, Q>
    where
        S: Service<Request<Q>>,
    {
        #[pin]
        stage: Stage<S, Q, S::Future>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<S, Q, F> {
        Asking {
            #[pin]
            answer: Timeout<StoreFuture<Result<Recalled, StoreLost>>>,
            call: Option<Call<S, Q>>,
        },
        Calling {
            #[pin]
            future: F,
        },
    }
}

impl<S, Q, B> Future for SharedRunsFuture<S, Q>
where
    S: Service<Request<Q>, Response = Response<B>, Error: Into<BoxError>>,
{
    type Output = Result<Response<B>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut stage = self.project().stage;
        loop {
            match stage.as_mut().project() {
                StageProj::Asking { answer, call } => {
                    let answer = ready!(answer.poll(cx)).unwrap_or(Err(StoreLost));
                    let Some(call) = call.take() else {
                        panic!("a response future was polled after it was ready")
                    };
                    let future = match call.make(answer) {
                        Ok(future) => future,
                        Err(end) => return Poll::Ready(Err(end)),
                    };
                    stage.set(Stage::Calling { future });
                }
                StageProj::Calling { future } => return future.poll(cx).map_err(Into::into),
            }
        }
    }
}
