//! `[health]`: makes calls wait while an upstream restarts.

use std::time::Duration;

use http::Uri;
use schemars::JsonSchema;
use serde::Deserialize;
use tower_agent::config::{CandidateTable, ConfigError, Span, Url};

/// The settings of `[health]`. An `every` or a `timeout` of `None` is the library's default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Health {
    /// The URL that answers 2xx once the upstream is ready.
    pub(crate) url: Uri,
    /// The interval of the probes.
    pub(crate) every: Option<Duration>,
    /// The longest that a probe may take.
    pub(crate) timeout: Option<Duration>,
    /// The longest that a call waits; `None` as long as its ceilings allow.
    pub(crate) patience: Option<Duration>,
    /// The silence of a call after which the upstream is probed too; `None` is off.
    pub(crate) watch_silence: Option<Duration>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct HealthTable {
    /// The URL that is probed, at the host and port of a candidate; 2xx is ready.
    url: Url,
    /// The interval of the probes; above zero. "5s" by default.
    every: Option<Span>,
    /// The longest that a probe may take; above zero. "5s" by default.
    timeout: Option<Span>,
    /// The longest that one call waits. Off by default.
    patience: Option<Span>,
    /// The silence of a call after which the upstream is probed, too. Off by default.
    watch_silence: Option<Span>,
}

/// Resolves the table. Its URL must have a candidate's host and port: else no call would ever wait.
///
/// The candidates are `None` if they could not be read.
pub(super) fn health(
    table: HealthTable,
    candidates: Option<&[CandidateTable]>,
) -> Result<Health, ConfigError> {
    let place = |url: &Uri| {
        let default = if url.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        let host = url.host().unwrap_or_default().to_ascii_lowercase();
        (host, url.port_u16().unwrap_or(default))
    };
    let url = table.url.get();
    let is_there = |candidate: &CandidateTable| place(candidate.base_url.get()) == place(url);
    let mut errors = Vec::new();
    if candidates.is_some_and(|candidates| !candidates.iter().any(is_there)) {
        let message = "is at no candidate's host and port";
        errors.push(ConfigError::new(["health", "url"], message));
    }
    let every = above_zero(["health", "every"], table.every);
    let timeout = above_zero(["health", "timeout"], table.timeout);
    let mut note = |error| errors.push(error);
    let every = every.map_err(&mut note).unwrap_or_default();
    let timeout = timeout.map_err(&mut note).unwrap_or_default();
    if let Some(error) = ConfigError::join(errors) {
        return Err(error);
    }
    Ok(Health {
        url: url.clone(),
        every,
        timeout,
        patience: table.patience.and_then(Span::limit),
        watch_silence: table.watch_silence.and_then(Span::limit),
    })
}

/// Converts the time of the key `key` to a duration; zero is an error.
pub(super) fn above_zero(
    key: [&str; 2],
    time: Option<Span>,
) -> Result<Option<Duration>, ConfigError> {
    match time.map(Span::get) {
        Some(Duration::ZERO) => Err(ConfigError::new(key, "must be longer than zero")),
        time => Ok(time),
    }
}
