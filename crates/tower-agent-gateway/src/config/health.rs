//! `[health]`: an upstream whose restarts are waited for.

use std::time::Duration;

use http::Uri;

use super::candidates::{Candidate, url};
use super::error::Problem;
use super::file;
use super::limit::Limit;

/// `[health]`; a time that is `None` has the library's default.
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

/// Resolves the table. Its URL must be at a candidate's host: else no call would ever wait.
pub(super) fn health(
    table: file::HealthTable,
    candidates: &[Candidate],
) -> Result<Health, Problem> {
    let span = table.url.span();
    let url = url("health.url", &table.url, "http://host:8080/health")?;
    let place = |url: &Uri| {
        let default = if url.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        let host = url.host().unwrap_or_default().to_ascii_lowercase();
        (host, url.port_u16().unwrap_or(default))
    };
    let is_there = |candidate: &Candidate| place(&candidate.base_url) == place(&url);
    if !candidates.iter().any(is_there) {
        return Err(Problem::new("health.url is at no candidate's host and port").at(span));
    }
    Ok(Health {
        url,
        every: Limit::above_zero("health.every", table.every)?,
        timeout: Limit::above_zero("health.timeout", table.timeout)?,
        patience: Limit::read("health.patience", table.patience)?.or(None),
        watch_silence: Limit::read("health.watch_silence", table.watch_silence)?.or(None),
    })
}
