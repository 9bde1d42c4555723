//! The limits of all agents and of each one: fills in absent keys, and checks them against each
//! other.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use super::{
    ConfigError,
    document::Removed,
    error::{Mistakes, error},
    presets::{FLOOR, RATIO, absent},
    tables::{AgentTable, AtCap, AttemptTable, File, Profile, RetryTable, RunTable},
    values::{Amount, BoundedCount, BoundedNumber, Span, limits_anything},
};
use crate::registry::RunRegistry;

/// The limits of an agent's runs and of their repeats; zero disables a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct AgentLimits {
    #[serde(flatten)]
    pub(super) run: RunTable,
    #[serde(flatten)]
    pub(super) retry: RetryTable,
    /// The time to the first notice, where it is set.
    ///
    /// An agent's `None` means the time in `agents.defaults`, and if that is `None` too, the time
    /// in `[progress]`. With none of the three the configuration turns no notices on.
    pub(super) notify_after: Option<Span>,
}

impl AgentLimits {
    /// Fills in the absent keys from `absent`.
    fn or(self, absent: &Self) -> Self {
        let mut run = self.run.or(absent.run);
        run.idle = run.idle.or(Some(usual_idle(run)));
        Self {
            run,
            retry: complete(self.retry, absent.retry),
            notify_after: self.notify_after.or(absent.notify_after),
        }
    }

    /// Checks the keys that are set against each other, and against those of `absent` in force.
    ///
    /// The keys of a run stand in the table at the path `of_run`, those of its repeats in the table
    /// at `of_retry`.
    fn check(&self, absent: &Self, [of_run, of_retry]: [&[&str]; 2], errors: &mut Mistakes) {
        check_run(of_run, self.run, self.run.or(absent.run), errors);
        check_retry(of_retry, self.retry, self.retry.or(absent.retry), errors);
    }

    /// The idle limit and the shortest limit on a run's time, if the idle limit is not shorter.
    pub(super) fn long_idle(&self) -> Option<(Duration, Duration)> {
        let idle = self.run.idle.and_then(Span::limit)?;
        let ceiling = ceiling(self.run).filter(|ceiling| idle >= *ceiling)?;
        Some((idle, ceiling))
    }

    /// The age at which a run with these limits ends, if they end it.
    pub(super) fn end(&self) -> Option<Duration> {
        ceiling(self.run)
    }

    /// Sets the part of a cap at which a run is near it, if the configuration sets none and caps
    /// anything.
    pub(super) fn set_near_at(&mut self, part: f64) {
        if self.run.near_at.is_none() && caps_anything(&self.run) {
            self.run.near_at = Some(BoundedNumber(part));
        }
    }

    /// Leaves out inherited keys that are an error in a table without certain other limits.
    pub(super) fn without_inherited(mut self, all: &Self) -> Self {
        fn clear<T: PartialEq>(own: &mut Option<T>, all: Option<T>) {
            if *own == all {
                *own = None;
            }
        }
        clear(&mut self.run.observe, all.run.observe);
        clear(&mut self.run.ask_at, all.run.ask_at);
        clear(&mut self.run.near_at, all.run.near_at);
        clear(&mut self.run.at_cap, all.run.at_cap);
        clear(&mut self.run.pause_wait, all.run.pause_wait);
        clear(&mut self.run.pause_limit, all.run.pause_limit);
        clear(&mut self.run.count_cached_input, all.run.count_cached_input);
        clear(&mut self.run.idle_fails_over, all.run.idle_fails_over);
        self
    }
}

/// The name under `agents` that stands for all agents.
pub(super) const DEFAULTS: &str = "defaults";

/// The limits of all agents, and of each that has a table.
pub(super) struct FileLimits {
    pub(super) defaults: AgentLimits,
    /// Whether `agents.defaults` has the `ask_at` of all agents.
    pub(super) defaults_ask: bool,
    pub(super) agents: BTreeMap<String, AgentLimits>,
    pub(super) windows: WindowLimits,
}

/// The step timeouts that end runs.
pub(super) struct WindowLimits {
    of_all: Option<WindowLimit>,
    /// Those of the agents that set one of their own.
    of_agents: Vec<WindowLimit>,
    /// The longest of all; `None` if the runs of an agent, or of all, have none.
    pub(super) longest: Option<Duration>,
}

/// A step timeout that ends runs.
struct WindowLimit {
    /// The path of the key that sets it; `None` if the preset does.
    key: Option<Vec<String>>,
    window: Duration,
}

impl WindowLimit {
    /// The window of the table at `path`, if the table decides about one and that is on.
    fn of(path: &[&str], set: &RunTable, whole: &RunTable) -> Option<Self> {
        if whole.observe == Some(true) {
            return None;
        }
        let keys = [
            ("step_timeout", set.step_timeout.is_some()),
            ("observe", set.observe.is_some()),
        ];
        let key = keys.into_iter().find(|(_, is_set)| *is_set);
        let path = path.iter().copied();
        Some(Self {
            key: key.map(|(key, _)| path.chain([key]).map(str::to_owned).collect()),
            window: whole.step_timeout.and_then(Span::limit)?,
        })
    }

    /// The path of the table that sets it.
    fn table(&self) -> Vec<&str> {
        match self.key.as_deref() {
            Some([table @ .., _]) => table.iter().map(String::as_str).collect(),
            _ => vec!["run"],
        }
    }
}

impl FileLimits {
    /// Takes the agents' tables out of the file.
    pub(super) fn of(file: &mut File, errors: &mut Mistakes) -> Self {
        let recommended = file.preset.is_some();
        let of_file = (file.run, file.retry.unwrap_or_default());
        let mut agents = std::mem::take(&mut file.agents);
        let table = agents.remove(DEFAULTS).unwrap_or_default();
        let of_defaults = table.split();
        let repeats = file.retry.is_some() || table.retry_budget.is_some();

        let mut set = limits_of(DEFAULTS, table, errors);
        let defaults_ask = set.run.ask_at.is_some();
        let retry = file.retry.unwrap_or_default();
        for (twice, table) in [
            (file.run.set_twice(&set.run), "run"),
            (retry.set_twice(&set.retry), "retry"),
        ] {
            let message = "is set twice: agents.defaults has it, too";
            let twice = twice.into_iter();
            errors.extend(twice.map(|key| ConfigError::new([table, key], message)));
        }
        set.run = set.run.or(file.run);
        set.retry = set.retry.or(retry);
        if let Some(failures) = file.tools.loop_detection.consecutive_errors {
            if set.retry.consecutive_errors.is_some() {
                let key = ["tools", "loopDetection", "consecutiveErrorThreshold"];
                let message = "is set twice: [retry] has it, too";
                errors.push(ConfigError::new(key, message));
            }
            set.retry.consecutive_errors = Some(failures);
        }
        let (run, retry) = absent(repeats, recommended);
        let absent = AgentLimits {
            run,
            retry,
            notify_after: None,
        };
        let mut found = Mistakes::new();
        set.check(&absent, [&["run"], &["retry"]], &mut found);
        let found = found.into_iter();
        errors.extend(found.map(|error| below_defaults(error, of_file, of_defaults)));
        let defaults = set.or(&absent);
        let in_defaults = of_defaults.0.step_timeout.is_some();
        let path: &[&str] = if in_defaults {
            &["agents", DEFAULTS]
        } else {
            &["run"]
        };
        let of_all = WindowLimit::of(path, &set.run, &defaults.run);
        let mut windows = WindowLimits {
            longest: of_all.as_ref().map(|of_all| of_all.window),
            of_all,
            of_agents: Vec::new(),
        };

        let idle_of_all = set.run.idle;
        let of_agent = |(name, table): (String, AgentTable)| {
            let mut absent = defaults;
            // Half of this agent's own ceiling, unless the file says how long.
            absent.run.idle = idle_of_all;
            if table.retry_budget.is_some() {
                // A `retryBudget` turns repeats on, as `[retry]` does, but for this agent alone.
                let attempts = set.retry.max_attempts_per_candidate;
                absent.retry.max_attempts_per_candidate = attempts.or(Some(BoundedCount(2)));
            }
            let path: &[&str] = &["agents", &name];
            let set = limits_of(&name, table, errors);
            set.check(&absent, [path, path], errors);
            let limits = set.or(&absent);
            let window = WindowLimit::of(path, &set.run, &limits.run);
            let both = windows.longest.zip(window.as_ref());
            windows.longest = both.map(|(longest, own)| longest.max(own.window));
            // An agent that sets nothing has the window of all.
            let own = window.filter(|window| window.key.is_some());
            windows.of_agents.extend(own);
            (name, limits)
        };
        let agents = agents.into_iter().map(of_agent).collect();
        Self {
            defaults,
            defaults_ask,
            agents,
            windows,
        }
    }
}

/// The limits in an agent's table, with those of its `retryBudget`.
fn limits_of(name: &str, table: AgentTable, errors: &mut Mistakes) -> AgentLimits {
    let (run, retry) = table.split();
    let budget = table.retry_budget.unwrap_or_default();
    let budget = RetryTable {
        per_error_key: budget.per_error_key,
        per_run: budget.per_run,
        ..RetryTable::default()
    };
    let twice = retry.set_twice(&budget).into_iter();
    errors.extend(twice.map(|key| {
        let message = "is set twice: retryBudget has it, too";
        ConfigError::new(["agents", name, key], message)
    }));
    AgentLimits {
        run,
        retry: retry.or(budget),
        notify_after: table.notify_after,
    }
}

/// Finds the caps on a cost, where no candidate has a price.
pub(super) fn check_costs(
    defaults: &AgentLimits,
    agents: &BTreeMap<String, AgentLimits>,
    errors: &mut Mistakes,
) {
    let message = "has no effect: no candidate has a price";
    let cap = |it: &AgentLimits| it.run.max_cost.and_then(Amount::limit);
    let of_all = cap(defaults);
    if of_all.is_some() {
        errors.push(error(&["run"], "max_cost", message));
    }
    for (name, limits) in agents {
        // An agent without a cap of its own inherits that of all.
        if cap(limits).is_some() && cap(limits) != of_all {
            errors.push(error(&["agents", name], "max_cost", message));
        }
    }
}

/// Moves an error about a key of `[run]` or `[retry]` to `agents.defaults`, if the key stands there and
/// not in the file's own table.
fn below_defaults(
    error: ConfigError,
    of_file: (RunTable, RetryTable),
    of_defaults: (RunTable, RetryTable),
) -> ConfigError {
    let path = error.key();
    let sets = |(run, retry)| {
        let (table, key) = path.split_once('.')?;
        let table = match table {
            "run" => toml::Table::try_from::<RunTable>(run).ok()?,
            "retry" => toml::Table::try_from::<RetryTable>(retry).ok()?,
            _ => return None,
        };
        table.contains_key(key).then_some(key)
    };
    match (sets(of_defaults), sets(of_file)) {
        (Some(key), None) => ConfigError::new(["agents", DEFAULTS, key], error.message()),
        _ => error,
    }
}

/// The idle limit of runs with these limits, where the configuration sets none.
fn usual_idle(run: RunTable) -> Span {
    Span(ceiling(run).map_or(RunRegistry::IDLE, RunRegistry::idle_below))
}

/// The age at which a run with these limits ends, if they end it.
fn ceiling(run: RunTable) -> Option<Duration> {
    let limits = [run.max_turn_time, run.timeout].into_iter().flatten();
    let ceiling = limits.filter_map(Span::limit).min();
    ceiling.filter(|_| run.observe != Some(true))
}

/// Fills in the absent keys of a table from `absent`.
///
/// If only one part of the shared budget is set, the other gets its default. An absent base delay
/// is at most the maximum delay.
fn complete(table: RetryTable, absent: RetryTable) -> RetryTable {
    let mut whole = table.or(absent);
    if whole.shared_ratio.is_some() || whole.shared_floor.is_some() {
        whole.shared_ratio = whole.shared_ratio.or(Some(RATIO));
        whole.shared_floor = whole.shared_floor.or(Some(FLOOR));
    }
    if let (None, Some(base), Some(max)) = (table.base_delay, whole.base_delay, whole.max_delay) {
        whole.base_delay = Some(Span(base.0.min(max.0)));
    }
    whole
}

/// Checks the keys that are set in a table; `whole` also has the values of absent keys.
fn check_run(table: &[&str], set: RunTable, whole: RunTable, errors: &mut Mistakes) {
    let mut wrong = |key, message| errors.push(error(table, key, message));
    let times = [whole.step_timeout, whole.max_turn_time, whole.timeout];
    if set.observe == Some(true) && !limits_anything(&times) {
        wrong("observe", "has no effect without a limit on time beside it");
    }
    if set.ask_at.is_some_and(|it| it.0 > 0.0) && !caps_tokens_or_cost(&whole) {
        wrong("ask_at", "has no effect without a cap on tokens or cost");
    }
    for (key, needs_cap) in [
        ("near_at", set.near_at.is_some_and(|it| it.0 > 0.0)),
        ("at_cap", set.at_cap == Some(AtCap::Pause)),
    ] {
        if needs_cap && !caps_anything(&whole) {
            wrong(key, "has no effect without a cap on turns, tokens or cost");
        }
    }
    for (key, time) in [
        ("pause_wait", set.pause_wait),
        ("pause_limit", set.pause_limit),
    ] {
        if time.is_some() && whole.at_cap != Some(AtCap::Pause) {
            wrong(key, "has no effect without at_cap = \"pause\"");
        }
    }
    if set.pause_limit.is_some_and(|limit| limit.limit().is_none()) {
        wrong("pause_limit", "must be longer than zero");
    }
    if set.count_cached_input == Some(true) && !is_on(whole.max_total_tokens) {
        let message = "has no effect without max_total_tokens";
        wrong("count_cached_input", message);
    }
    if set.idle_fails_over == Some(true) && !is_on(whole.idle_breaker) {
        wrong("idle_fails_over", "has no effect without idle_breaker");
    }
}

fn check_retry(table: &[&str], set: RetryTable, whole: RetryTable, errors: &mut Mistakes) {
    if let (Some(base), Some(max)) = (set.base_delay, whole.max_delay) {
        if base.0 > max.0 {
            let message = format!("{:?} is longer than max_delay ({:?})", base.0, max.0);
            errors.push(error(table, "base_delay", message));
        }
    }
}

impl WindowLimits {
    /// Finds step timeouts of runs that are not longer than those of their attempts; the preset has filled
    /// in those that `set` lacks.
    ///
    /// Such a window ends the run before the attempt, so that no other attempt follows a silent one.
    /// The window until the first token is a mistake only if that of no run is longer.
    pub(super) fn check(
        &self,
        attempt: &AttemptTable,
        set: &AttemptTable,
        removed: &Removed,
        errors: &mut Mistakes,
    ) {
        if attempt.observe || attempt.profile == Profile::Local {
            return;
        }
        const WHY: &str = "the run would end before another attempt can follow a silent one";
        let shorter = |key: &[String], window: Duration, other: &str, limit: Duration| {
            let is_set = match other {
                "step_timeout" => set.step_timeout.is_some(),
                _ => set.first_token_timeout.is_some(),
            };
            let whose = if is_set { "" } else { " of the preset" };
            let message =
                format!("{window:?} is not longer than attempt.{other} ({limit:?}{whose}): {WHY}");
            ConfigError::new(key.iter().map(String::as_str), message)
        };
        let longer = |key: &str, limit: Duration, window: Duration| {
            let message =
                format!("{limit:?} is not shorter than run.step_timeout ({window:?}): {WHY}");
            error(&["attempt"], key, message)
        };
        let limit = |window: Option<Span>| window.and_then(Span::limit);
        let before = errors.len();
        if let Some(limit) = limit(attempt.step_timeout) {
            let name = "step_timeout";
            for WindowLimit { key, window } in self.of_all.iter().filter(|it| it.window <= limit) {
                errors.push(match key {
                    Some(key) => shorter(key, *window, name, limit),
                    None => longer(name, limit, *window),
                });
            }
            let of_agents = self.of_agents.iter().filter(|it| it.window <= limit);
            for agent in of_agents.filter(|it| !removed.concerns(&it.table())) {
                let key = agent.key.as_deref().unwrap_or_default();
                errors.push(shorter(key, agent.window, name, limit));
            }
        }
        let first = limit(attempt.first_token_timeout);
        let (Some(limit), Some(longest)) = (first, self.longest) else {
            return;
        };
        // The longest is known only if each agent's is.
        if errors.len() == before && longest <= limit && !removed.concerns(&["agents"]) {
            let name = "first_token_timeout";
            let of_all = self.of_all.as_ref().filter(|it| it.window == longest);
            errors.push(match of_all.and_then(|it| it.key.as_ref()) {
                Some(key) => shorter(key, longest, name, limit),
                None => longer(name, limit, longest),
            });
        }
    }
}

fn caps_tokens_or_cost(run: &RunTable) -> bool {
    let caps_cost = run.max_cost.and_then(Amount::limit).is_some();
    is_on(run.max_total_tokens) || is_on(run.max_output_tokens) || caps_cost
}

fn caps_anything(run: &RunTable) -> bool {
    caps_tokens_or_cost(run) || is_on(run.max_turns)
}

fn is_on<const LEAST: u32, const MOST: u32>(count: Option<BoundedCount<LEAST, MOST>>) -> bool {
    count.and_then(BoundedCount::limit).is_some()
}
