//! The layers of an agent's stack, made in a fixed order from named settings.
//!
//! [`AgentStack::server`] makes a stack that answers requests of other programs;
//! [`AgentStack::client`] makes one for the requests that the program itself sends. The layers,
//! from the outside in:
//!
//! | layer | where | setting | without the setting |
//! |---|---|---|---|
//! | [`TerminalResponseLayer`] | server | [`responses`](AgentStack::responses), [`early_head`](AgentStack::early_head) | its defaults |
//! | [`RunStoreLayer`] | server | [`RunRegistry::share`], [`run_store`](AgentStack::run_store) | passes each call on |
//! | [`RunLayer`] | server | [`runs`](AgentStack::runs) | its defaults |
//! | [`PumpLayer`] | server | [`pump`](AgentStack::pump) | its defaults |
//! | [`HardCeilingLayer`] of the run | both | [`ceiling`](AgentStack::ceiling) | no limit |
//! | [`StepTimeoutLayer`] of the run | both | [`run_step`](AgentStack::run_step) | no limit |
//! | [`StopPhraseLayer`] | server | [`stop_phrases`](AgentStack::stop_phrases) | no phrase |
//! | [`OwnerCapLayer`] | server | [`owner_caps`](AgentStack::owner_caps) | no cap |
//! | [`TurnCapLayer`] | both | [`max_turns`](AgentStack::max_turns) | no cap |
//! | [`TokenCapLayer`] | both | [`token_caps`](AgentStack::token_caps) | no cap |
//! | [`LoopGuardLayer`] | both | [`loops`](AgentStack::loops) | left out |
//! | [`ModelFallbackLayer`] | both | [`fallback`](AgentStack::fallback) | left out |
//! | [`RetryBudgetLayer`] | both | [`retry`](AgentStack::retry) | one attempt per candidate |
//! | [`HardCeilingLayer`] of the attempt | both | [`attempt_ceiling`](AgentStack::attempt_ceiling) | no limit |
//! | [`StepTimeoutLayer`] of the attempt | both | [`step`](AgentStack::step), [`first`](AgentStack::first) | no limit |
//!
//! A ceiling and a step window that stand beside each other here are one [`TimeLimitsLayer`], which
//! behaves as the two.
//!
//! Put a [`HealthGateLayer`](crate::HealthGateLayer), and the program's own layers around each
//! attempt, around the service that you hand to [`service`](AgentStack::service). That service
//! must be `Clone`, and takes requests with a [`ReplayBody`](crate::ReplayBody).
//!
//! # Contradictions
//!
//! Some settings turn off others: see [`contradictions`](AgentStack::contradictions). The stack
//! logs each contradiction as a warning when its layers are made.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
//! use std::{convert::Infallible, time::Duration};
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceExt, service_fn};
//! use tower_agent::{AgentStack, Candidate, ReplayBody, RetryBudget, RunRegistry};
//!
//! let model = service_fn(|_: Request<ReplayBody>| async {
//!     let answer = r#"{"choices":[{"message":{"role":"assistant","content":"Hi"}}]}"#;
//!     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(answer)))
//! });
//! let stack = AgentStack::server(&RunRegistry::new())
//!     .step(Duration::from_secs(120))
//!     .first(Duration::from_secs(240))
//!     .ceiling(Duration::from_secs(1800))
//!     .fallback([Candidate::new("large"), Candidate::new("small")])
//!     .retry(RetryBudget::new())
//!     .service(model);
//!
//! let request = Request::post("/v1/chat/completions").body(Full::from(r#"{"model":"large"}"#))?;
//! let answer = stack.oneshot(request).await?;
//! assert_eq!(answer.headers()["x-served-model"], "large");
//! # Ok(())
//! # }
//! ```

mod optional;

pub use self::optional::{Optional, OptionalFuture, OptionalService};

use std::time::Duration;

use tower_layer::{Layer, Stack};

use crate::{
    attempt::{AttemptSummary, Candidate, RetryBudget, strip_hop},
    layers::{
        hard_ceiling::HardCeilingLayer, loop_guard::LoopGuardLayer,
        model_fallback::ModelFallbackLayer, owner_cap::OwnerCapLayer, pump::PumpLayer,
        retry_budget::RetryBudgetLayer, run::RunLayer, run_store::RunStoreLayer,
        step_timeout::StepTimeoutLayer, stop_phrase::StopPhraseLayer,
        terminal_response::TerminalResponseLayer, time_limits::TimeLimitsLayer,
        token_cap::TokenCapLayer, turn_cap::TurnCapLayer,
    },
    registry::{OwnerCaps, RunRegistry},
    run::{Scope, TokenCaps},
};

/// The settings of an agent's stack: see the [module](self).
#[derive(Clone, Debug)]
pub struct AgentStack<Side> {
    side: Side,
    ceiling: HardCeilingLayer,
    run_step: StepTimeoutLayer,
    turns: TurnCapLayer,
    tokens: TokenCapLayer,
    always_counts: bool,
    loops: LoopGuardLayer,
    fallback: Option<ModelFallbackLayer>,
    retry: Option<RetryBudgetLayer>,
    attempt_ceiling: HardCeilingLayer,
    step: StepTimeoutLayer,
    first: Option<Duration>,
}

/// The registry, and the settings of the layers that only a server's stack has.
#[derive(Clone, Debug)]
pub struct Server {
    registry: RunRegistry,
    responses: TerminalResponseLayer,
    store: RunStoreLayer,
    runs: RunLayer,
    pump: PumpLayer,
    stop: StopPhraseLayer,
    owners: OwnerCapLayer,
}

/// The marker type of a stack for requests that the program itself sends.
#[derive(Clone, Copy, Debug)]
pub struct Client;

/// The layers of a client, outermost last.
pub type ClientLayers = Stack<CallLayers, RunLimits>;

/// The layers of a server, outermost last.
pub type ServerLayers = Stack<
    CallLayers,
    Stack<
        OwnerCapLayer,
        Stack<
            StopPhraseLayer,
            Stack<
                RunLimits,
                Stack<PumpLayer, Stack<RunLayer, Stack<RunStoreLayer, TerminalResponseLayer>>>,
            >,
        >,
    >,
>;

/// The two limits on time of a run, or of an attempt: a step window within a ceiling, in one wrapper.
pub type RunLimits = TimeLimitsLayer;

/// The layers around a call's attempts, and those of each attempt.
pub type CallLayers = Stack<
    RunLimits,
    Stack<
        RetryBudgetLayer,
        Stack<
            Optional<ModelFallbackLayer>,
            Stack<Optional<LoopGuardLayer>, Stack<TokenCapLayer, TurnCapLayer>>,
        >,
    >,
>;

impl AgentStack<Client> {
    /// Makes a stack for the requests that the program itself sends.
    ///
    /// The program opens its run and [attaches](crate::Run::attach) it to each request.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
    /// use std::{convert::Infallible, time::Duration};
    /// use bytes::Bytes;
    /// use http::{Request, Response};
    /// use http_body_util::Full;
    /// use tower::{ServiceExt, service_fn};
    /// use tower_agent::{AgentStack, ReplayBody, RetryBudget, Run, TerminalReason};
    ///
    /// let model = service_fn(|_: Request<ReplayBody>| async {
    ///     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(r#"{"choices":[{}]}"#)))
    /// });
    /// let stack = AgentStack::client()
    ///     .step(Duration::from_secs(120))
    ///     .max_turns(2)
    ///     .retry(RetryBudget::new())
    ///     .service(model);
    ///
    /// // One run for the task, and one call of it for each turn of the agent's loop.
    /// let run = Run::open();
    /// for _ in 0..2 {
    ///     let ask = Request::post("/v1/chat/completions").body(Full::from(r#"{"model":"large"}"#))?;
    ///     stack.clone().oneshot(run.attach(ask)).await?;
    /// }
    /// let ask = Request::post("/v1/chat/completions").body(Full::from(r#"{"model":"large"}"#))?;
    /// assert!(stack.oneshot(run.attach(ask)).await.is_err());
    /// assert_eq!(run.terminal_reason(), Some(TerminalReason::TurnCap));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn client() -> Self {
        Self::new(Client)
    }

    /// Makes the layers of the stack, and logs its [contradictions](Self::contradictions).
    #[must_use]
    pub fn layer(&self) -> ClientLayers {
        Stack::new(self.calls(), self.run_limits())
    }

    /// Puts the layers around the service that sends an attempt.
    #[must_use]
    pub fn service<S>(&self, transport: S) -> <ClientLayers as Layer<S>>::Service
    where
        ClientLayers: Layer<S>,
    {
        self.layer().layer(transport)
    }
}

impl AgentStack<Server> {
    /// Makes a stack that answers requests, with its runs in `registry`.
    #[must_use]
    pub fn server(registry: &RunRegistry) -> Self {
        Self::new(Server {
            responses: TerminalResponseLayer::new().once_woken(true),
            store: RunStoreLayer::new(&RunLayer::new(registry.clone())),
            runs: RunLayer::new(registry.clone()),
            pump: PumpLayer::new(),
            stop: StopPhraseLayer::new(registry.clone(), [""; 0]),
            owners: OwnerCapLayer::optional(registry.clone(), None),
            registry: registry.clone(),
        })
    }

    /// Changes the layer that turns errors into responses.
    #[must_use]
    pub fn responses(
        mut self,
        change: impl FnOnce(TerminalResponseLayer) -> TerminalResponseLayer,
    ) -> Self {
        self.side.responses = change(self.side.responses);
        self
    }

    /// Sends the head of a stream, and then keeps it alive, if the call has no answer after `after`.
    ///
    /// Attempts, with their retries and fallbacks, go on meanwhile. What is lost is named at
    /// [`TerminalResponseLayer::early_head`]. By default the caller waits for the answer's own head.
    #[must_use]
    pub fn early_head(self, after: Duration) -> Self {
        self.responses(|layer| layer.early_head(after))
    }

    /// Changes the layer that asks the store of a [shared](RunRegistry::share) registry.
    ///
    /// The stack sets the layer's sources of ids, its cap on turns, and the fallback whose cooldowns and
    /// sticky sessions the replicas share.
    #[must_use]
    pub fn run_store(mut self, change: impl FnOnce(RunStoreLayer) -> RunStoreLayer) -> Self {
        self.side.store = change(self.side.store);
        self
    }

    /// Changes the layer that finds or opens a request's run.
    #[must_use]
    pub fn runs(mut self, change: impl FnOnce(RunLayer) -> RunLayer) -> Self {
        self.side.runs = change(self.side.runs);
        self
    }

    /// Changes the layer that ends or drains the call of a slow or disconnected caller.
    #[must_use]
    pub fn pump(mut self, change: impl FnOnce(PumpLayer) -> PumpLayer) -> Self {
        self.side.pump = change(self.side.pump);
        self
    }

    /// Sets the phrases by which a user ends the other runs of a session.
    #[must_use]
    pub fn stop_phrases(mut self, phrases: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        self.side.stop = StopPhraseLayer::new(self.side.registry.clone(), phrases);
        self
    }

    /// Sets the caps of each owner over all its runs.
    #[must_use]
    pub fn owner_caps(mut self, caps: OwnerCaps) -> Self {
        self.side.owners = OwnerCapLayer::new(self.side.registry.clone(), caps);
        self
    }

    /// Makes the layers of the stack, and logs its [contradictions](Self::contradictions).
    #[must_use]
    pub fn layer(&self) -> ServerLayers {
        let side = self.side.clone();
        let runs = side.runs.idle_below(self.ceiling.earliest());
        let fallback = self.fallback.as_ref();
        let store = side
            .store
            .within(&runs, &self.turns, &self.tokens, &side.owners, fallback);
        let layers = Stack::new(store, side.responses);
        let layers = Stack::new(runs, layers);
        let layers = Stack::new(side.pump, layers);
        let layers = Stack::new(self.run_limits(), layers);
        let stop = side.stop.within_stack(side.owners.caps());
        let layers = Stack::new(stop, layers);
        Stack::new(self.calls(), Stack::new(side.owners, layers))
    }

    /// Puts the layers around the service that sends an attempt.
    #[must_use]
    pub fn service<S>(&self, transport: S) -> <ServerLayers as Layer<S>>::Service
    where
        ServerLayers: Layer<S>,
    {
        self.layer().layer(transport)
    }
}

impl<Side> AgentStack<Side> {
    const fn new(side: Side) -> Self {
        Self {
            side,
            ceiling: HardCeilingLayer::optional(None),
            run_step: StepTimeoutLayer::optional(None),
            turns: TurnCapLayer::optional(None),
            tokens: TokenCapLayer::new(TokenCaps::new()),
            always_counts: false,
            loops: LoopGuardLayer::off(),
            fallback: None,
            retry: None,
            attempt_ceiling: HardCeilingLayer::optional(None),
            step: StepTimeoutLayer::optional(None),
            first: None,
        }
    }

    /// Ends a run at this age, also if it makes progress.
    ///
    /// # Panics
    ///
    /// Panics at a limit of zero. The `optional(None)` of the layer switches it off.
    #[must_use]
    pub fn ceiling(mut self, limit: impl Into<HardCeilingLayer>) -> Self {
        self.ceiling = limit.into();
        self
    }

    /// Ends a run in which neither a call nor a tool makes progress for this long.
    ///
    /// A window that is not longer than those of [`step`](Self::step) and [`first`](Self::first)
    /// ends the run before another attempt can follow a silent one.
    ///
    /// # Panics
    ///
    /// Panics at a limit of zero. The `optional(None)` of the layer switches it off.
    #[must_use]
    pub fn run_step(mut self, window: impl Into<StepTimeoutLayer>) -> Self {
        self.run_step = window.into();
        self
    }

    /// Caps the turns of a run; by default the first turn beyond this number ends the run.
    ///
    /// # Panics
    ///
    /// Panics at a limit of zero. The `optional(None)` of the layer switches it off.
    #[must_use]
    pub fn max_turns(mut self, turns: impl Into<TurnCapLayer>) -> Self {
        self.turns = turns.into();
        self
    }

    /// Ends a run that has used up its tokens, or what they may cost.
    #[must_use]
    pub fn token_caps(mut self, caps: impl Into<TokenCapLayer>) -> Self {
        self.tokens = caps.into();
        self
    }

    /// Counts the turns and the tokens of runs without caps, too.
    ///
    /// [`RunSnapshot::turns`](crate::RunSnapshot::turns) and
    /// [`spent`](crate::RunSnapshot::spent) then say what each run has used.
    #[must_use]
    pub const fn always_count(mut self) -> Self {
        self.always_counts = true;
        self
    }

    /// Ends a run that makes the same tool calls again and again.
    #[must_use]
    pub fn loops(mut self, limits: LoopGuardLayer) -> Self {
        self.loops = limits;
        self
    }

    /// Sets the models that a call may move to when an attempt fails.
    ///
    /// The budget of [`retry`](Self::retry) must allow each move.
    #[must_use]
    pub fn fallback(mut self, candidates: impl Into<ModelFallbackLayer>) -> Self {
        self.fallback = Some(candidates.into());
        self
    }

    /// Repeats a failed attempt if this budget allows.
    #[must_use]
    pub fn retry(mut self, budget: impl Into<RetryBudgetLayer>) -> Self {
        self.retry = Some(budget.into());
        self
    }

    /// Calls `hook` after every attempt: see [`RetryBudget::after_attempt`].
    ///
    /// Call this method after [`retry`](Self::retry), which sets the budget with the hook of that.
    #[must_use]
    pub fn after_attempt(mut self, hook: impl Fn(&AttemptSummary) + Send + Sync + 'static) -> Self {
        let retry = self.retry.take();
        let retry = retry.unwrap_or_else(|| once().into());
        self.retry = Some(retry.after_attempt(hook));
        self
    }

    /// Ends an attempt at this age; another may follow.
    ///
    /// # Panics
    ///
    /// Panics at a limit of zero. The `optional(None)` of the layer switches it off.
    #[must_use]
    pub fn attempt_ceiling(mut self, limit: impl Into<HardCeilingLayer>) -> Self {
        self.attempt_ceiling = limit.into();
        self
    }

    /// Ends an attempt that makes no progress for this long; another may follow.
    ///
    /// # Panics
    ///
    /// Panics at a limit of zero. The `optional(None)` of the layer switches it off.
    #[must_use]
    pub fn step(mut self, window: impl Into<StepTimeoutLayer>) -> Self {
        self.step = window.into();
        self
    }

    /// Sets another window for the time until an attempt's first content.
    ///
    /// For an answer that does not stream, this window lasts until the first byte of its body.
    /// Without [`step`](Self::step) it is the only window of the attempt.
    ///
    /// # Panics
    ///
    /// Panics if `window` is zero.
    #[must_use]
    pub fn first(mut self, window: Duration) -> Self {
        assert!(!window.is_zero(), "a first window must be longer than zero");
        self.first = Some(window);
        self
    }

    /// Names the settings that turn off others, with the reason and the remedy for each.
    ///
    /// The method names a limit of the attempt that is longer than the [`ceiling`](Self::ceiling),
    /// which ends the run first. If the stack has [`retry`](Self::retry) or
    /// [`fallback`](Self::fallback), it also names one that is as long as the ceiling, and a window
    /// of the attempt that is not shorter than [`run_step`](Self::run_step): no other attempt could
    /// follow. The windows until the first content are compared with each other. It names a
    /// [`hold`](RetryBudgetLayer::hold) that is over before a floor on speed can end an attempt.
    /// Limits in shadow mode are not compared.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        let repeats = self.retry.is_some() || self.fallback.is_some();
        let ends_first =
            |run: Duration, attempt: Duration| attempt > run || (attempt == run && repeats);
        // Each window stands against the run's: the one until the first content, and the other.
        let [(first, step), (run_first, run_step)] =
            [self.attempt_step(), self.run_step].map(|layer| layer.windows().unzip());
        let differs = (first, run_first) != (step, run_step);
        let attempts = [
            ("step", step, run_step),
            ("first", first.filter(|_| differs), run_first),
            ("attempt_ceiling", self.attempt_ceiling.earliest(), None),
        ];
        let mut found = Vec::new();
        let hold = self.retry.as_ref().and_then(RetryBudgetLayer::held_for);
        if let (Some(over), Some(hold)) = (self.step.speed_over(), hold) {
            if hold <= over {
                found.push(format!(
                    "the `hold` of {hold:?} commits an answer before the floor on speed, over \
                     {over:?}, can end it, so no attempt follows a slow one: make it longer, or leave \
                     it out"
                ));
            }
        }
        for (name, limit, run_step) in attempts {
            let Some(limit) = limit.filter(|limit| *limit < Duration::MAX) else {
                continue;
            };
            if let Some(ceiling) = self.ceiling.earliest().filter(|it| ends_first(*it, limit)) {
                found.push(format!(
                    "the ceiling of {ceiling:?} ends the run before `{name}` of {limit:?} can end \
                     an attempt: make the ceiling longer"
                ));
            }
            if let Some(window) = run_step.filter(|it| repeats && *it <= limit) {
                found.push(format!(
                    "`run_step` of {window:?} ends the run before `{name}` of {limit:?} can end an \
                     attempt, so no attempt follows a silent one: make `run_step` longer"
                ));
            }
        }
        found
    }

    #[cfg(feature = "config")]
    pub(crate) fn budget(&self) -> Option<&RetryBudget> {
        Some(self.retry.as_ref()?.budget())
    }

    fn run_limits(&self) -> RunLimits {
        for contradiction in self.contradictions() {
            tracing::warn!(
                target: "tower_agent",
                contradiction,
                "a setting of the stack turns off another"
            );
        }
        let (step, ceiling) = (self.run_step, self.ceiling);
        TimeLimitsLayer::new(ceiling.scope(Scope::Run), step.scope(Scope::Run))
    }

    fn calls(&self) -> CallLayers {
        let retry = self.retry.clone().unwrap_or_else(|| once().into());
        let fallback = self.fallback.clone().filter(|layer| !layer.is_idle());
        let fallback = fallback.map(|layer| layer.budget(retry.budget().clone()));
        let loops = Some(self.loops.clone()).filter(|layer| !layer.is_off());
        let (tokens, turns) = (self.tokens, self.turns.clone());
        let layers = match self.always_counts {
            true => Stack::new(tokens.always_count_attempts(), turns.always_count()),
            false => Stack::new(tokens, turns),
        };
        let layers = Stack::new(Optional::new(loops, |_| {}), layers);
        let layers = Stack::new(
            retry,
            Stack::new(Optional::new(fallback, strip_hop), layers),
        );
        let limits = TimeLimitsLayer::new(self.attempt_ceiling, self.attempt_step());
        Stack::new(limits, layers)
    }

    const fn attempt_step(&self) -> StepTimeoutLayer {
        match self.first {
            Some(first) => self.step.first(first),
            None => self.step,
        }
    }
}

/// Makes a budget that allows one attempt per candidate and counts no failures.
fn once() -> RetryBudget {
    let budget = RetryBudget::new().max_attempts_per_candidate(1);
    budget.per_error_key(None).per_run(None).unshared()
}

impl From<Duration> for StepTimeoutLayer {
    fn from(window: Duration) -> Self {
        Self::new(window)
    }
}

impl From<Duration> for HardCeilingLayer {
    fn from(limit: Duration) -> Self {
        Self::new(limit)
    }
}

impl From<u32> for TurnCapLayer {
    fn from(turns: u32) -> Self {
        Self::new(turns)
    }
}

impl From<RetryBudget> for RetryBudgetLayer {
    fn from(budget: RetryBudget) -> Self {
        Self::new(budget)
    }
}

impl<const N: usize> From<[Candidate; N]> for ModelFallbackLayer {
    fn from(candidates: [Candidate; N]) -> Self {
        Self::new(candidates)
    }
}

impl From<Vec<Candidate>> for ModelFallbackLayer {
    fn from(candidates: Vec<Candidate>) -> Self {
        Self::new(candidates)
    }
}
