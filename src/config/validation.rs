//! Fills in the absent keys of a configuration, and checks its keys against each other.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use serde::Serialize;

use super::{
    AgentConfig, ConfigError, KeyPart,
    tables::{
        AgentTable, AttemptTable, CandidateTable, DisconnectPolicy, DisconnectTable, FallbackTable,
        File, LoopsTable, Profile, ProgressTable, RetryTable, RunTable, StopTable,
    },
    values::{Amount, BoundedCount, BoundedNumber, Time},
};
use crate::{registry::RunRegistry, run::LoopLimits};

/// The limits of an agent's runs and of their repeats; zero is off.
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
    pub(super) notify_after: Option<Time>,
}

impl AgentLimits {
    /// Fills in the absent keys from `absent`, and checks those that are set.
    ///
    /// The keys of a run stand in the table at the path `of_run`, those of its repeats in the table
    /// at `of_retry`.
    fn or(self, absent: &Self, of_run: &[&str], of_retry: &[&str]) -> Result<Self, ConfigError> {
        let mut run = self.run.or(absent.run);
        run.idle = run.idle.or(Some(usual_idle(run)));
        check_run(of_run, self.run, run)?;
        check_retry(of_retry, self.retry, self.retry.or(absent.retry))?;
        Ok(Self {
            run,
            retry: complete(self.retry, absent.retry),
            notify_after: self.notify_after.or(absent.notify_after),
        })
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
        clear(&mut self.run.count_cached_input, all.run.count_cached_input);
        clear(&mut self.run.idle_fails_over, all.run.idle_fails_over);
        self
    }
}

/// The name under `agents` that stands for all agents.
pub(super) const DEFAULTS: &str = "defaults";

/// The default values of absent keys.
const RATIO: BoundedNumber<10> = BoundedNumber(0.2);
const FLOOR: BoundedCount<0, 1_000_000> = BoundedCount(10);
const HEARTBEAT: Time = secs(10);
const DRAIN_LIMIT: Time = secs(30);
const NOTIFY_AFTER: Time = secs(30);
const KEEP_ALIVE: Time = secs(15);

const fn secs(seconds: u64) -> Time {
    Time(Duration::from_secs(seconds))
}

const fn millis(millis: u64) -> Time {
    Time(Duration::from_millis(millis))
}

impl AgentConfig {
    pub(super) fn check(file: File) -> Result<Self, ConfigError> {
        let of_file = (file.run, file.retry.unwrap_or_default());
        let of_defaults = file.agents.get(DEFAULTS).map(|table| table.split());
        Self::check_all(file).map_err(|error| match of_defaults {
            Some(of_defaults) => below_defaults(error, of_file, of_defaults),
            None => error,
        })
    }

    fn check_all(file: File) -> Result<Self, ConfigError> {
        let recommended = file.preset.is_some();
        let mut agents = file.agents;
        let table = agents.remove(DEFAULTS).unwrap_or_default();
        let detection = file.tools.loop_detection;
        let repeats = file.retry.is_some() || table.retry_budget.is_some();

        let mut set = limits_of(DEFAULTS, table)?;
        let defaults_ask = set.run.ask_at.is_some();
        let retry = file.retry.unwrap_or_default();
        for (twice, table) in [
            (file.run.set_twice(&set.run), "run"),
            (retry.set_twice(&set.retry), "retry"),
        ] {
            if let Some(key) = twice {
                let message = "is set twice: agents.defaults has it, too";
                return Err(ConfigError::new([table, key], message));
            }
        }
        set.run = set.run.or(file.run);
        set.retry = set.retry.or(retry);
        if let Some(failures) = detection.consecutive_errors {
            if set.retry.consecutive_errors.is_some() {
                let key = ["tools", "loopDetection", "consecutiveErrorThreshold"];
                return Err(ConfigError::new(key, "is set twice: [retry] has it, too"));
            }
            set.retry.consecutive_errors = Some(failures);
        }
        let defaults = set.or(&absent(repeats, recommended), &["run"], &["retry"])?;
        let of_agent = |(name, table): (String, AgentTable)| {
            let mut absent = defaults;
            // Half of this agent's own ceiling, unless the file says how long.
            absent.run.idle = set.run.idle;
            if table.retry_budget.is_some() {
                // A `retryBudget` turns repeats on, as `[retry]` does, but for this agent alone.
                let attempts = set.retry.max_attempts_per_candidate;
                absent.retry.max_attempts_per_candidate = attempts.or(Some(BoundedCount(2)));
            }
            let path = ["agents", &name];
            let limits = limits_of(&name, table)?.or(&absent, &path, &path)?;
            Ok((name, limits))
        };
        let agents = agents.into_iter().map(of_agent);
        let agents = agents.collect::<Result<BTreeMap<_, _>, ConfigError>>()?;

        let observes = |limits: &AgentLimits| limits.run.observe == Some(true);
        if file.disconnect.caller_deadline && (observes(&defaults) || agents.values().any(observes))
        {
            let message = "is of no use beside observe of a run's limits";
            return Err(ConfigError::new(["disconnect", "caller_deadline"], message));
        }
        check_candidates(&file.candidates)?;
        if !file.candidates.iter().any(|it| it.price.is_some()) {
            let caps_cost = |it: &AgentLimits| it.run.max_cost.and_then(Amount::limit).is_some();
            let message = "is of no use: no candidate has a price";
            // An agent without a cap of its own inherits that of all.
            if caps_cost(&defaults) {
                return Err(error(&["run"], "max_cost", message));
            }
            if let Some((name, _)) = agents.iter().find(|(_, limits)| caps_cost(limits)) {
                return Err(error(&["agents", name], "max_cost", message));
            }
        }
        Ok(Self {
            attempt: attempt(file.attempt, recommended)?,
            disconnect: disconnect(file.disconnect)?,
            fallback: FallbackTable {
                cooldown: Some(file.fallback.cooldown.unwrap_or(recommended)),
                sticky: Some(file.fallback.sticky.unwrap_or(recommended)),
            },
            stop: file.stop.map_or(Ok(Vec::new()), phrases)?,
            loops: loops(file.loops, detection.enabled, recommended)?,
            progress: file.progress.map(|table| ProgressTable {
                notify_after: table.notify_after.or(Some(NOTIFY_AFTER)),
                keep_alive: table.keep_alive.or(Some(KEEP_ALIVE)),
                ..table
            }),
            candidates: file.candidates,
            agents,
            defaults,
            defaults_ask,
        })
    }
}

/// The limits in an agent's table, with those of its `retryBudget`.
fn limits_of(name: &str, table: AgentTable) -> Result<AgentLimits, ConfigError> {
    let (run, retry) = table.split();
    let budget = table.retry_budget.unwrap_or_default();
    let budget = RetryTable {
        per_error_key: budget.per_error_key,
        per_run: budget.per_run,
        ..RetryTable::default()
    };
    if let Some(key) = retry.set_twice(&budget) {
        let message = "is set twice: retryBudget has it, too";
        return Err(ConfigError::new(["agents", name, key], message));
    }
    Ok(AgentLimits {
        run,
        retry: retry.or(budget),
        notify_after: table.notify_after,
    })
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

/// The limits where the configuration sets none.
///
/// The values of absent retry keys. Without a table and a preset, nothing is repeated or counted.
fn absent(repeats: bool, recommended: bool) -> AgentLimits {
    let attempts = if repeats || recommended { 2 } else { 1 };
    let mut run = RunTable::default();
    let mut retry = RetryTable {
        max_attempts_per_candidate: Some(BoundedCount(attempts)),
        base_delay: Some(millis(500)),
        max_delay: Some(secs(8)),
        max_retry_after: Some(secs(60)),
        ..RetryTable::default()
    };
    if recommended {
        run.step_timeout = Some(secs(300));
        // Users ask for five minutes to an hour. The preset has the longest of these, so that every
        // run has an end.
        run.max_turn_time = Some(secs(3600));
        run.max_turns = Some(BoundedCount(30));
        run.idle_breaker = Some(BoundedCount(5));
        retry.per_error_key = Some(BoundedCount(3));
        retry.per_run = Some(BoundedCount(10));
        retry.shared_ratio = Some(RATIO);
        retry.shared_floor = Some(FLOOR);
    }
    AgentLimits {
        run,
        retry,
        notify_after: None,
    }
}

/// The idle limit of runs with these limits, where the configuration sets none.
fn usual_idle(run: RunTable) -> Time {
    let limits = [run.max_turn_time, run.timeout].into_iter().flatten();
    let ceiling = limits.filter_map(Time::limit).min();
    let ceiling = ceiling.filter(|_| run.observe != Some(true));
    Time(ceiling.map_or(RunRegistry::IDLE, RunRegistry::idle_below))
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
        whole.base_delay = Some(Time(base.0.min(max.0)));
    }
    whole
}

/// Checks the keys that are set in a table; `whole` also has the values of absent keys.
fn check_run(table: &[&str], set: RunTable, whole: RunTable) -> Result<(), ConfigError> {
    let wrong = |key, message| Err(error(table, key, message));
    let times = [whole.step_timeout, whole.max_turn_time, whole.timeout];
    if set.observe == Some(true) && !limits_anything(&times) {
        return wrong("observe", "is of no use without a limit on time beside it");
    }
    let caps_total = is_on(whole.max_total_tokens);
    let caps_tokens = caps_total || is_on(whole.max_output_tokens);
    let caps_cost = whole.max_cost.and_then(Amount::limit).is_some();
    if set.ask_at.is_some_and(|it| it.0 > 0.0) && !caps_tokens && !caps_cost {
        return wrong("ask_at", "is of no use without a cap on tokens or cost");
    }
    if set.count_cached_input == Some(true) && !caps_total {
        let message = "is of no use without max_total_tokens";
        return wrong("count_cached_input", message);
    }
    if set.idle_fails_over == Some(true) && !is_on(whole.idle_breaker) {
        return wrong("idle_fails_over", "does nothing without idle_breaker");
    }
    Ok(())
}

fn check_retry(table: &[&str], set: RetryTable, whole: RetryTable) -> Result<(), ConfigError> {
    match (set.base_delay, whole.max_delay) {
        (Some(base), Some(max)) if base.0 > max.0 => {
            let message = format!("{:?} is longer than max_delay ({:?})", base.0, max.0);
            Err(error(table, "base_delay", message))
        }
        _ => Ok(()),
    }
}

fn error(table: &[&str], key: &str, message: impl Into<String>) -> ConfigError {
    ConfigError::new(table.iter().copied().chain([key]), message)
}

fn is_on<const LEAST: u32, const MOST: u32>(count: Option<BoundedCount<LEAST, MOST>>) -> bool {
    count.and_then(BoundedCount::limit).is_some()
}

fn limits_anything(times: &[Option<Time>]) -> bool {
    times.iter().flatten().any(|time| time.limit().is_some())
}

fn attempt(mut table: AttemptTable, recommended: bool) -> Result<AttemptTable, ConfigError> {
    let wrong = |key, message| Err(error(&["attempt"], key, message));
    if table.profile == Profile::Local {
        let windows = [
            ("step_timeout", table.step_timeout),
            ("first_token_timeout", table.first_token_timeout),
        ];
        if let Some((key, _)) = windows.iter().find(|(_, window)| window.is_some()) {
            return wrong(key, "is of no use with profile = \"local\"");
        }
        if table.heartbeat.is_some_and(|every| every.limit().is_none()) {
            return wrong("heartbeat", "must be longer than zero");
        }
        table.heartbeat = table.heartbeat.or(Some(HEARTBEAT));
    } else if table.heartbeat.is_some() {
        return wrong("heartbeat", "is of no use without profile = \"local\"");
    } else if recommended {
        table.step_timeout = table.step_timeout.or(Some(secs(120)));
        table.first_token_timeout = table.first_token_timeout.or(Some(secs(240)));
    }
    let windows = [table.step_timeout, table.first_token_timeout];
    let others = [table.max_time, table.heartbeat];
    if table.observe && !limits_anything(&windows) && !limits_anything(&others) {
        return wrong("observe", "is of no use without a limit on time beside it");
    }
    Ok(table)
}

fn disconnect(mut table: DisconnectTable) -> Result<DisconnectTable, ConfigError> {
    let drains = table.policy == DisconnectPolicy::Drain;
    let message = match table.drain_limit {
        Some(_) if !drains => "is of no use without policy = \"drain\"",
        Some(limit) if limit.limit().is_none() => {
            "is zero: to drain nothing, write policy = \"cancel\""
        }
        _ => {
            let limit = table.drain_limit.unwrap_or(DRAIN_LIMIT);
            table.drain_limit = drains.then_some(limit);
            return Ok(table);
        }
    };
    Err(error(&["disconnect"], "drain_limit", message))
}

/// Checks the phrases: each needs a letter or a digit, because a phrase without either never
/// matches.
fn phrases(StopTable { phrases }: StopTable) -> Result<Vec<String>, ConfigError> {
    let key = [KeyPart::from("stop"), KeyPart::from("phrases")];
    if phrases.is_empty() {
        return Err(ConfigError::new(
            key,
            "is empty: to have none, leave [stop] out",
        ));
    }
    let means = |phrase: &String| phrase.contains(char::is_alphanumeric);
    match phrases.iter().position(|phrase| !means(phrase)) {
        Some(index) => {
            let message = format!("{:?} has no letter and no digit", phrases[index]);
            Err(ConfigError::new(
                key.into_iter().chain([index.into()]),
                message,
            ))
        }
        None => Ok(phrases),
    }
}

/// The limits of the loop guard; `None` if the guard or each limit is off, so that the guard reads
/// no conversation.
fn loops(
    table: Option<LoopsTable>,
    enabled: Option<bool>,
    recommended: bool,
) -> Result<Option<LoopsTable>, ConfigError> {
    if let (Some(_), Some(false)) = (&table, enabled) {
        let key = ["tools", "loopDetection", "enabled"];
        return Err(ConfigError::new(
            key,
            "is false beside [loops]: leave one of them out",
        ));
    }
    let Some(mut table) =
        table.or_else(|| enabled.unwrap_or(recommended).then(LoopsTable::default))
    else {
        return Ok(None);
    };
    let absent = LoopLimits::DEFAULT;
    let mut is_on = false;
    for (number, absent) in [
        (&mut table.warn, absent.warn),
        (&mut table.stop, absent.stop),
        (&mut table.unknown_tool, absent.unknown_tool),
        (&mut table.any_tool, absent.any_tool),
    ] {
        let number = number.get_or_insert(BoundedCount(absent.map_or(0, NonZeroU32::get)));
        is_on |= number.0 > 0;
    }
    Ok(is_on.then_some(table))
}

fn check_candidates(candidates: &[CandidateTable]) -> Result<(), ConfigError> {
    for (index, candidate) in candidates.iter().enumerate() {
        let wrong = |key: Option<&str>, message: &str| {
            let path = [KeyPart::from("candidates"), index.into()];
            let path = path.into_iter().chain(key.map(KeyPart::from));
            Err(ConfigError::new(path, message))
        };
        if candidate.model.is_empty() {
            return wrong(Some("model"), "is empty");
        }
        if candidate.name.as_deref() == Some("") {
            return wrong(Some("name"), "is empty");
        }
        let name = candidate.label();
        if candidates[..index]
            .iter()
            .any(|other| other.label() == name)
        {
            let message = format!("a second candidate is named {name:?}: give it another `name`");
            return wrong(None, &message);
        }
    }
    Ok(())
}
