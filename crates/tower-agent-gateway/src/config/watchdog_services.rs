//! `[watchdog]`: the services that examine runs that look stuck.

use std::time::Duration;

use http::Uri;
use schemars::JsonSchema;
use serde::Deserialize;
use tower_agent::config::{AgentConfig, BoundedCount, ConfigError, Span, Url};

use super::health_gate::above_zero;

/// `[watchdog]`; it has a checker, a question, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WatchdogServices {
    /// The URL that answers a run's snapshot with a verdict.
    pub(crate) checker: Option<Uri>,
    /// The longest that a check may take; `None` is the library's default.
    pub(crate) check_within: Option<Duration>,
    /// The URL that answers a question whether a run shall go on.
    pub(crate) question: Option<Uri>,
    /// The longest that an answer may take; `None` as long as the run lives.
    pub(crate) answer_within: Option<Duration>,
    /// Whether the checker's verdict alone ends a run.
    pub(crate) ends: bool,
    /// Whether the watchdog only gives notices, asks no question and ends no run.
    pub(crate) observe: bool,
    /// The most bytes of an action's arguments, and of the task, that the services see.
    pub(crate) excerpts: u32,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct WatchdogTable {
    /// The URL that gets a run and answers with its status.
    checker: Option<Url>,
    /// The longest that a check may take; above zero. "5s" by default; only with `checker`.
    check_within: Option<Span>,
    /// The URL that asks a person whether a run shall go on.
    question: Option<Url>,
    /// How long an answer is waited for. Off by default; only with `question`.
    answer_within: Option<Span>,
    /// Whether a run that the checker finds stuck or looping ends. False by default; only with
    /// `checker`.
    ends: Option<bool>,
    /// Whether no person is asked, nothing ends, and only observers are told.
    observe: bool,
    /// The most bytes of an action's arguments, and of the user's message, that the services see. 0
    /// by default.
    excerpts: Option<BoundedCount<0, 1024>>,
}

/// Resolves the table. Only the loop guard tells the gateway what a run does, so without `[loops]`
/// no run ever looks stuck; a person may still be asked before a cap on tokens.
pub(super) fn watchdog(
    table: Option<WatchdogTable>,
    agent: &AgentConfig,
) -> Result<Option<WatchdogServices>, ConfigError> {
    let asks = table.as_ref().is_some_and(|it| it.question.is_some());
    if let (Some(ask_at), false) = (agent.ask_at(), asks) {
        return useless(ask_at, "watchdog.question");
    }
    let Some(table) = table else { return Ok(None) };
    let (checks, looks) = (table.checker.is_some(), agent.detects_loops());
    if !looks && agent.ask_at().is_none() {
        return useless(["watchdog"], "[loops]");
    }
    if !checks && !asks {
        return useless(["watchdog"], "`checker` or `question`");
    }
    if checks && !looks {
        return useless(["watchdog", "checker"], "[loops]");
    }
    let mut errors = Vec::new();
    for (key, is_set, need, is_met) in [
        (
            "check_within",
            table.check_within.is_some(),
            "checker",
            checks,
        ),
        (
            "answer_within",
            table.answer_within.is_some(),
            "question",
            asks,
        ),
        ("ends", table.ends.is_some(), "checker", checks),
    ] {
        if is_set && !is_met {
            errors.push(without(["watchdog", key], &format!("watchdog.{need}")));
        }
    }
    let check_within = above_zero(["watchdog", "check_within"], table.check_within)
        .map_err(|error| errors.push(error))
        .unwrap_or_default();
    if let Some(error) = ConfigError::join(errors) {
        return Err(error);
    }
    Ok(Some(WatchdogServices {
        checker: table.checker.map(|url| url.get().clone()),
        check_within,
        question: table.question.map(|url| url.get().clone()),
        answer_within: table.answer_within.and_then(Span::limit),
        ends: table.ends == Some(true),
        observe: table.observe,
        excerpts: table.excerpts.map_or(0, BoundedCount::get),
    }))
}

fn useless<'a, T>(key: impl IntoIterator<Item = &'a str>, need: &str) -> Result<T, ConfigError> {
    Err(without(key, need))
}

fn without<'a>(key: impl IntoIterator<Item = &'a str>, need: &str) -> ConfigError {
    ConfigError::new(key, format!("has no effect without {need}"))
}
