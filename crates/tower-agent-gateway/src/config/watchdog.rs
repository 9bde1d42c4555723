//! `[watchdog]`: the services that examine runs that look stuck.

use std::time::Duration;

use http::Uri;
use serde::Deserialize;
use tower_agent::config::{AgentConfig, ConfigError, Count, Time, Url};

use super::health::above_zero;

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
    /// The most bytes of each action, and of the task, that the services see.
    pub(crate) excerpts: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub(super) struct WatchdogTable {
    checker: Option<Url>,
    check_within: Option<Time>,
    question: Option<Url>,
    answer_within: Option<Time>,
    ends: Option<bool>,
    observe: bool,
    /// At most as many as the library takes.
    excerpts: Option<Count<0, 1024>>,
}

/// Resolves the table. Only the loop guard tells the gateway what a run does, so without `[loops]`
/// no run ever looks stuck; a person may still be asked before a cap on tokens.
pub(super) fn watchdog(
    table: WatchdogTable,
    agent: &AgentConfig,
) -> Result<WatchdogServices, ConfigError> {
    let (checks, asks) = (table.checker.is_some(), table.question.is_some());
    let useless = |key: Option<&str>, need: &str| {
        let key = ["watchdog"].into_iter().chain(key);
        Err(ConfigError::new(
            key,
            format!("is of no use without {need}"),
        ))
    };
    if !(agent.detects_loops() || asks && agent.asks_at_caps()) {
        return useless(None, "[loops]");
    }
    if !checks && !asks {
        return useless(None, "`checker` or `question`");
    }
    if table.check_within.is_some() && !checks {
        return useless(Some("check_within"), "watchdog.checker");
    }
    if table.answer_within.is_some() && !asks {
        return useless(Some("answer_within"), "watchdog.question");
    }
    if table.ends.is_some() && !checks {
        return useless(Some("ends"), "watchdog.checker");
    }
    Ok(WatchdogServices {
        checker: table.checker.map(|url| url.get().clone()),
        check_within: above_zero(["watchdog", "check_within"], table.check_within)?,
        question: table.question.map(|url| url.get().clone()),
        answer_within: table.answer_within.and_then(Time::limit),
        ends: table.ends == Some(true),
        observe: table.observe,
        excerpts: table.excerpts.map_or(0, Count::get),
    })
}
