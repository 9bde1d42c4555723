//! Makes the layers of a stack from a configuration.

use std::time::Duration;

use super::{
    AgentConfig, ConfigError,
    candidates::with,
    limits::AgentLimits,
    tables::{AtCap, AttemptTable, LoopsTable, Profile, RetryTable, RunTable},
    values::{Amount, BoundedCount, BoundedNumber, Span},
};
use crate::{
    attempt::{Candidate, IdleBreaker, RetryBudget},
    layers::{
        hard_ceiling::HardCeilingLayer,
        loop_guard::LoopGuardLayer,
        model_fallback::{Cooldowns, ModelFallbackLayer},
        retry_budget::RetryBudgetLayer,
        run::RunLayer,
        step_timeout::StepTimeoutLayer,
        terminal_response::TerminalResponseLayer,
        token_cap::TokenCapLayer,
        turn_cap::TurnCapLayer,
    },
    llm::failure::FailureClass,
    registry::RunRegistry,
    run::{PauseAtCap, ProgressNotices, TokenCaps},
    stack::{AgentStack, Client, Server},
};

/// A time that is longer than any limit that a configuration can set.
const NEVER: Duration = RunRegistry::NEVER_IDLE;

impl AgentConfig {
    /// Makes the layer that moves calls between `candidates`. Failed candidates cool down in
    /// `cooldowns`, if the configuration sets cooldowns.
    #[must_use]
    pub fn fallback(
        &self,
        candidates: Vec<Candidate>,
        cooldowns: &Cooldowns,
    ) -> ModelFallbackLayer {
        let layer = ModelFallbackLayer::new(candidates);
        let layer = layer
            .sticky(self.fallback.sticky == Some(true))
            .share(self.fallback.share != Some(false))
            .default_model(self.fallback.default_model == Some(true))
            .classifier(self.classifier());
        let layer = match self.fallback.after_refusal {
            Some(true) => layer.also_after(FailureClass::ContentFilter),
            _ => layer,
        };
        match self.fallback.cooldown {
            Some(true) => layer.cooldowns(cooldowns.clone()),
            _ => layer,
        }
    }

    /// Sets the limits that a server's and a client's stack have.
    fn set_limits<Side>(&self, stack: AgentStack<Side>, of: &AgentLimits) -> AgentStack<Side> {
        let run = &of.run;
        let observes = run.observe == Some(true);
        let ceiling = HardCeilingLayer::optional(limit(run.max_turn_time))
            .timeout(limit(run.timeout))
            .caller_deadline(self.disconnect.caller_deadline);
        let step = StepTimeoutLayer::optional(limit(run.step_timeout));
        let (ceiling, step) = match observes {
            true => (ceiling.observe(), step.observe()),
            false => (ceiling, step),
        };
        let then = match run.idle_fails_over {
            Some(true) => IdleBreaker::FailOver,
            _ => IdleBreaker::End,
        };
        let silent = run.idle_breaker.and_then(BoundedCount::limit);
        let idle = silent.map(|silent| (silent, then));
        // An agent with the same shared limits draws on the budget of all agents.
        let same = stack
            .budget()
            .filter(|_| is_same_budget(&of.retry, &self.defaults.retry));
        let shared = same.cloned().unwrap_or_else(|| shared(&of.retry));
        let retry = RetryBudgetLayer::new(budget(shared, &of.retry, idle));
        let retry = with(retry, limit(self.attempt.hold), RetryBudgetLayer::hold);
        let retry = retry.classifier(self.classifier());
        let turns = TurnCapLayer::optional(run.max_turns.and_then(BoundedCount::limit));
        let turns = with(turns, near_at(run), TurnCapLayer::near_at);
        stack
            .ceiling(ceiling)
            .run_step(step)
            .max_turns(with(turns, pause_at_cap(run), TurnCapLayer::pause))
            .token_caps(with(
                token_caps(run),
                pause_at_cap(run),
                TokenCapLayer::pause,
            ))
            .retry(retry)
    }

    /// Sets the limits of a server's stack: those of its calls, of its runs, and its notices.
    fn set_server_limits(&self, stack: AgentStack<Server>, of: &AgentLimits) -> AgentStack<Server> {
        let partial = of.run.partial.map_or(0, BoundedCount::get);
        let runs = |layer: RunLayer| {
            let layer = layer.idle(limit(of.run.idle).unwrap_or(NEVER));
            layer.keep_partial(partial as usize)
        };
        self.set_limits(stack, of)
            .responses(|layer| self.notices(layer, of.notify_after))
            .runs(runs)
    }

    /// Sets what all agents have in common: the limits of an attempt, and the loop guard.
    fn set_attempt_limits<Side>(&self, stack: AgentStack<Side>) -> AgentStack<Side> {
        let attempt = &self.attempt;
        let ceiling = HardCeilingLayer::optional(limit(attempt.max_time));
        let ceiling = match attempt.observe {
            true => ceiling.observe(),
            false => ceiling,
        };
        let loops = self.loops.as_ref();
        let loops = loops.map_or_else(LoopGuardLayer::off, loop_guard);
        stack
            .loops(loops)
            .attempt_ceiling(ceiling)
            .step(attempt_step(attempt))
    }

    /// Makes the fallback between the candidates, whose keys are read from the environment.
    fn fallback_from_env(&self) -> Result<ModelFallbackLayer, ConfigError> {
        let candidates = self.candidates(|variable| std::env::var(variable).ok())?;
        Ok(self.fallback(candidates, &Cooldowns::new()))
    }

    fn notices(
        &self,
        layer: TerminalResponseLayer,
        notify_after: Option<Span>,
    ) -> TerminalResponseLayer {
        let progress = self.progress.unwrap_or_default();
        let layer = layer.keep_alive(limit(progress.keep_alive));
        let layer = layer.comments(progress.comments);
        let early = limit(progress.early_head);
        let layer = with(layer, early, TerminalResponseLayer::early_head);
        let after = notify_after.or(progress.notify_after);
        with(layer, after, |layer, after| {
            layer.notices(ProgressNotices::new().after(after.get()))
        })
    }
}

impl AgentStack<Server> {
    /// Applies the whole configuration; reads the candidates' keys from the environment.
    ///
    /// # Errors
    ///
    /// If the candidates cannot be made: see [`AgentConfig::candidates`].
    pub fn configure(self, config: &AgentConfig) -> Result<Self, ConfigError> {
        Ok(self.fallback(config.fallback_from_env()?).limits(config))
    }

    /// Applies the configuration, except for its candidates and the fallback between them.
    #[must_use]
    pub fn limits(self, config: &AgentConfig) -> Self {
        let stack = self
            .pump(|layer| layer.drain(limit(config.disconnect.drain_limit)))
            .stop_phrases(&config.stop);
        config.set_server_limits(config.set_attempt_limits(stack), &config.defaults)
    }

    /// Sets the limits of one agent; for a `name` without a table the stack stays unchanged.
    ///
    /// Call this method on a clone of the stack that has the limits of all agents. Both stacks
    /// share the sticky sessions, the cooldowns, and, unless the agent has another `shared_ratio`
    /// or `shared_floor`, the shared budget.
    #[must_use]
    pub fn for_agent(self, config: &AgentConfig, name: &str) -> Self {
        match config.agents.get(name) {
            Some(limits) => config.set_server_limits(self, limits),
            None => self,
        }
    }
}

impl AgentStack<Client> {
    /// Applies the whole configuration; reads the candidates' keys from the environment.
    ///
    /// An agent's own loop then keeps the limits of the gateway's file. A client's stack has no
    /// caller and no registry, so these keys have no effect: `[disconnect] drain_limit`, `[stop]`,
    /// `[progress]`, and `idle`, `partial` and `notify_after` of `[run]`.
    ///
    /// # Errors
    ///
    /// If the candidates cannot be made: see [`AgentConfig::candidates`].
    pub fn configure(self, config: &AgentConfig) -> Result<Self, ConfigError> {
        Ok(self.fallback(config.fallback_from_env()?).limits(config))
    }

    /// Applies the configuration, except for its candidates and the fallback between them.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
    /// use std::convert::Infallible;
    /// use bytes::Bytes;
    /// use http::{Request, Response};
    /// use http_body_util::Full;
    /// use tower::{ServiceExt, service_fn};
    /// use tower_agent::{AgentConfig, AgentStack, ReplayBody, Run, TerminalReason};
    ///
    /// let config = AgentConfig::from_toml(
    ///     "[run]\n\
    ///      max_turns = 40\n\
    ///      [agents.title]\n\
    ///      max_turns = 1\n",
    /// )?;
    /// let model = service_fn(|_: Request<ReplayBody>| async {
    ///     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(r#"{"choices":[{}]}"#)))
    /// });
    /// let stack = AgentStack::client().limits(&config);
    /// let title = stack.for_agent(&config, "title").service(model);
    ///
    /// let run = Run::open();
    /// let ask = || Request::post("/v1/chat/completions").body(Full::from(r#"{"model":"large"}"#));
    /// title.clone().oneshot(run.attach(ask()?)).await?;
    /// assert!(title.oneshot(run.attach(ask()?)).await.is_err());
    /// assert_eq!(run.terminal_reason(), Some(TerminalReason::TurnCap));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn limits(self, config: &AgentConfig) -> Self {
        config.set_limits(config.set_attempt_limits(self), &config.defaults)
    }

    /// Sets the limits of one agent; for a `name` without a table the stack stays unchanged.
    ///
    /// Call this method on a clone of the stack that has the limits of all agents. Both stacks
    /// share the sticky sessions, the cooldowns, and, unless the agent has another `shared_ratio`
    /// or `shared_floor`, the shared budget.
    #[must_use]
    pub fn for_agent(self, config: &AgentConfig, name: &str) -> Self {
        match config.agents.get(name) {
            Some(limits) => config.set_limits(self, limits),
            None => self,
        }
    }
}

impl TryFrom<&AgentConfig> for AgentStack<Client> {
    type Error = ConfigError;

    fn try_from(config: &AgentConfig) -> Result<Self, ConfigError> {
        Self::client().configure(config)
    }
}

/// Makes a stack with a new registry.
impl TryFrom<&AgentConfig> for AgentStack<Server> {
    type Error = ConfigError;

    fn try_from(config: &AgentConfig) -> Result<Self, ConfigError> {
        Self::server(&RunRegistry::new()).configure(config)
    }
}

fn limit(time: Option<Span>) -> Option<Duration> {
    time.and_then(Span::limit)
}

fn pause_at_cap(run: &RunTable) -> Option<PauseAtCap> {
    let pauses = run.at_cap == Some(AtCap::Pause);
    let pause = pauses.then(PauseAtCap::new)?;
    let pause = with(pause, run.pause_wait.map(Span::get), PauseAtCap::wait);
    Some(with(pause, limit(run.pause_limit), PauseAtCap::limit))
}

fn token_caps(run: &RunTable) -> TokenCapLayer {
    let caps = TokenCaps::new()
        .max_output_tokens(run.max_output_tokens.and_then(BoundedCount::limit))
        .max_total_tokens(run.max_total_tokens.and_then(BoundedCount::limit))
        .max_cost(run.max_cost.and_then(Amount::limit))
        .count_cached_input(run.count_cached_input == Some(true));
    let ask_at = run.ask_at.and_then(BoundedNumber::limit);
    let layer = with(TokenCapLayer::new(caps), ask_at, TokenCapLayer::ask_at);
    with(layer, near_at(run), TokenCapLayer::near_at)
}

fn near_at(run: &RunTable) -> Option<f64> {
    run.near_at.and_then(BoundedNumber::limit)
}

fn attempt_step(table: &AttemptTable) -> StepTimeoutLayer {
    let layer = match (table.profile, limit(table.heartbeat)) {
        (Profile::Local, Some(every)) => StepTimeoutLayer::local().heartbeat(every),
        _ => {
            let step = limit(table.step_timeout);
            // Zero switches off the first window alone; an absent one is as long as the step window.
            let off = step.map(|_| Duration::MAX);
            let first = table.first_token_timeout.and_then(|it| it.limit().or(off));
            with(
                StepTimeoutLayer::optional(step),
                first,
                StepTimeoutLayer::first,
            )
        }
    };
    let floor = table.min_tokens_per_second.and_then(BoundedNumber::limit);
    let layer = match floor.zip(limit(table.over)) {
        Some((tokens, over)) => layer.min_tokens_per_second(tokens, over),
        None => layer,
    };
    match table.observe {
        true => layer.observe(),
        false => layer,
    }
}

fn loop_guard(table: &LoopsTable) -> LoopGuardLayer {
    // A checked table has all four limits.
    let count = |limit: Option<_>| limit.map_or(0, BoundedCount::get);
    let mut layer = LoopGuardLayer::new()
        .warn(count(table.warn))
        .stop(count(table.stop))
        .unknown_tool(count(table.unknown_tool))
        .any_tool(count(table.any_tool));
    if !table.polls.is_empty() {
        layer = layer.polls(table.polls.iter().map(String::as_str));
    }
    if table.exact_results {
        layer = layer.exact_results();
    }
    match table.observe {
        true => layer.observe(),
        false => layer,
    }
}

fn is_same_budget(one: &RetryTable, other: &RetryTable) -> bool {
    (one.shared_ratio, one.shared_floor) == (other.shared_ratio, other.shared_floor)
}

/// The budget that all runs share, which is off only if both its parts are zero or absent.
fn shared(table: &RetryTable) -> RetryBudget {
    let ratio = table.shared_ratio.map_or(0.0, |ratio| ratio.0);
    let floor = table.shared_floor.map_or(0, BoundedCount::get);
    match ratio > 0.0 || floor > 0 {
        true => RetryBudget::new().shared(ratio, floor),
        false => RetryBudget::new().unshared(),
    }
}

/// Adds the limits of one run and of one call to `shared`.
fn budget(
    shared: RetryBudget,
    table: &RetryTable,
    idle: Option<(u32, IdleBreaker)>,
) -> RetryBudget {
    let wait = |time: Option<Span>| time.map_or(Duration::ZERO, Span::get);
    let attempts = table.max_attempts_per_candidate;
    shared
        .max_attempts_per_candidate(attempts.map_or(1, BoundedCount::get))
        .per_error_key(table.per_error_key.and_then(BoundedCount::limit))
        .per_run(table.per_run.and_then(BoundedCount::limit))
        .consecutive_errors(table.consecutive_errors.and_then(BoundedCount::limit))
        .delays(wait(table.base_delay), wait(table.max_delay))
        .max_retry_after(wait(table.max_retry_after))
        .set_idle_breaker(idle)
}
