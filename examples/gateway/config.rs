//! The gateway's configuration: a TOML file, checked and resolved before anything listens.
//!
//! An absent limit is off, and so is `"0s"`; `preset = "recommended"` fills in what the file
//! leaves out. Whatever is wrong is one error that names the key and its place in the file,
//! because a limit that was silently ignored is found out at 3 a.m.

use std::fmt;
use std::fs;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::time::Duration;

use http::Uri;
use serde::Deserialize;

mod disconnect;
mod error;
mod fallback;
mod file;
mod limit;
mod number;
mod resolve;
mod retry;
#[cfg(test)]
mod tests;

pub(crate) use error::ConfigError;

/// A configuration in which every value is usable as it stands.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Limits of a run.
    pub(crate) run: RunLimits,
    /// Limits of one attempt.
    pub(crate) attempt: AttemptLimits,
    /// Whether a call ends when its caller would give up, as its headers say.
    pub(crate) caller_deadline: bool,
    /// How many frames the pump holds for a slow reader.
    pub(crate) pump_frames: NonZeroUsize,
    /// How long an answer is read for whose caller has left; `None` cancels it.
    pub(crate) drain: Option<Duration>,
    /// What a caller of the control routes must present, if anything.
    pub(crate) control_token: Option<Secret>,
    /// How often what failed is tried again.
    pub(crate) retry: Retry,
    /// Whom a call goes to when another candidate has failed before.
    pub(crate) fallback: Fallback,
    /// The models that serve, and where to reach them, in the order in which they are tried.
    /// At least one, and no two of one name.
    pub(crate) candidates: Vec<Candidate>,
}

/// `[run]`; `None` is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RunLimits {
    /// Ends a run in which no step completes for this long.
    pub(crate) step_timeout: Option<Duration>,
    /// Ends a run at this age, whatever it does.
    pub(crate) max_turn_time: Option<Duration>,
    /// The run's total: as `max_turn_time`, under the caller's name for it.
    pub(crate) timeout: Option<Duration>,
    /// How many attempts may be silent in a row, and whether the run then ends.
    pub(crate) idle_breaker: Option<IdleBreaker>,
}

/// `[attempt]`; `None` is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AttemptLimits {
    /// Ends an attempt that is silent for this long.
    pub(crate) step_timeout: Option<Duration>,
    /// The window before the first content, which for a unary answer is the whole wait.
    pub(crate) first_token_timeout: Option<Duration>,
    /// Ends an attempt at this age.
    pub(crate) max_time: Option<Duration>,
    /// How long an answer may be held back for its first content.
    pub(crate) hold: Option<Duration>,
}

/// `[retry]`; `None` is off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Retry {
    /// How often one candidate is tried within a call, at least once.
    pub(crate) attempts: u32,
    /// How often a run may repeat the same failure.
    pub(crate) per_error_key: Option<u32>,
    /// How many failures of any kind a run may have.
    pub(crate) per_run: Option<u32>,
    /// What all runs together may repeat.
    pub(crate) shared: Option<Shared>,
    /// The wait before the first repeat, before jitter.
    pub(crate) base_delay: Duration,
    /// What that grows to, and never shorter than it.
    pub(crate) max_delay: Duration,
    /// The longest wait that an upstream may ask for.
    pub(crate) max_retry_after: Duration,
}

/// What all runs together may repeat, per candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Shared {
    /// Repeats per first attempt.
    pub(crate) ratio: f64,
    /// Repeats per second in any case.
    pub(crate) floor: u32,
}

/// When attempts of a run are silent, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdleBreaker {
    /// How many may be.
    pub(crate) silent: u32,
    /// Whether the run goes on with the next candidate, or ends.
    pub(crate) fails_over: bool,
}

/// `[fallback]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fallback {
    /// Whether a candidate that has failed is left alone for a while.
    pub(crate) cooldown: bool,
    /// Whether a session stays with the candidate that served it.
    pub(crate) sticky: bool,
}

/// One entry of `[[candidates]]`.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    /// What callers and logs call it.
    pub(crate) name: String,
    /// The model that its upstream is asked for.
    pub(crate) model: String,
    /// An absolute URL without query or trailing slash, which ends before the operation.
    pub(crate) base_url: Uri,
    /// Which API it speaks.
    pub(crate) dialect: Dialect,
    /// What is sent as its credential, if anything.
    pub(crate) api_key: Option<Secret>,
    /// Tokens that it takes, if known.
    pub(crate) context_window: Option<NonZeroU64>,
    /// Whether its `x-terminal-reason` counts, and it is told our run id.
    pub(crate) trusted: bool,
}

/// Which API a candidate speaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dialect {
    /// Whatever it is sent.
    #[default]
    Any,
    /// OpenAI chat, Responses and embeddings.
    OpenAi,
    /// Anthropic messages.
    Anthropic,
}

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Config {
    /// Reads and resolves the file at `path`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or for the first thing in it that is wrong.
    pub(crate) fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &name),
            Err(error) => Err(ConfigError::unreadable(&name, error)),
        }
    }

    /// Resolves the TOML document `text`; errors call it `source_name`.
    ///
    /// # Errors
    ///
    /// For the first thing that is wrong.
    pub(crate) fn parse(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        resolve::config(text, |variable| std::env::var(variable).ok())
            .map_err(|problem| ConfigError::new(text, source_name, problem))
    }
}

impl Secret {
    /// The value itself, to be sent and not kept.
    #[must_use]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}
