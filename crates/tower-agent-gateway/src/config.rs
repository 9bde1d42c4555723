//! The gateway's configuration: a TOML file, checked and resolved before anything listens.
//!
//! An absent limit is off, and so is `"0s"`; `preset = "recommended"` fills in what the file
//! leaves out. Each mistake is an error that names the key and its place in the file, because
//! an operator would notice an ignored limit only when an incident needs it.

use std::fs;
use std::path::Path;
use std::time::Duration;

mod agents;
mod auth;
mod candidates;
mod cors;
mod disconnect;
mod error;
mod fallback;
mod file;
mod health;
mod limit;
mod loops;
mod number;
mod progress;
mod resolve;
mod retry;
mod run;
mod secret;
mod server;
mod stop;
#[cfg(test)]
mod tests;
mod watchdog;

pub use self::error::ConfigError;
pub(crate) use self::{
    agents::Agent,
    auth::{Auth, Key},
    candidates::{Candidate, Dialect},
    cors::Cors,
    health::Health,
    loops::Loops,
    progress::Progress,
    retry::{Retry, SharedBudget},
    run::RunLimits,
    secret::Secret,
    server::ServerLimits,
    watchdog::WatchdogServices,
};

/// A configuration in which every value is usable as it stands.
#[derive(Debug, Clone)]
pub struct Config {
    /// Limits of a connection.
    pub(crate) server: ServerLimits,
    /// Limits of a run.
    pub(crate) run: RunLimits,
    /// Limits of one attempt.
    pub(crate) attempt: AttemptLimits,
    /// Whether the limits that a caller's headers announce end its call.
    pub(crate) caller_deadline: bool,
    /// How long an answer is still read after its caller has left; `None` cancels it.
    pub(crate) drain: Option<Duration>,
    /// The token that a request to the operator's routes must carry, if any.
    pub(crate) control_token: Option<Secret>,
    /// How long runs may go on after the signal to stop; `None` ends them at once.
    pub(crate) shutdown_drain: Option<Duration>,
    /// The phrases by which a user ends the other runs of a session.
    pub(crate) stop: Option<Vec<String>>,
    /// The limits on repeated tool calls of a run.
    pub(crate) loops: Option<Loops>,
    /// The notices and keep-alive comments of calls that take long.
    pub(crate) progress: Option<Progress>,
    /// The upstream whose restarts are waited for.
    pub(crate) health: Option<Health>,
    /// The services that examine runs that look stuck.
    pub(crate) watchdog: Option<WatchdogServices>,
    /// The keys of which a caller must show one; `None` serves every caller.
    pub(crate) auth: Option<Auth>,
    /// The other origins from which pages may call.
    pub(crate) cors: Option<Cors>,
    /// How often a failed attempt is repeated.
    pub(crate) retry: Retry,
    /// Callers with limits of their own, by the name of their key.
    pub(crate) agents: Vec<Agent>,
    /// How earlier failures and sessions change the choice of a candidate.
    pub(crate) fallback: Fallback,
    /// The models and their upstreams, in the order in which calls try them. There is at least
    /// one, and each has its own name.
    pub(crate) candidates: Vec<Candidate>,
}

/// `[attempt]`; `None` is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AttemptLimits {
    /// Ends an attempt that is silent for this long.
    pub(crate) step_timeout: Option<Duration>,
    /// Ends an attempt that is silent for this long before its first content. For a unary
    /// answer this is the whole wait.
    pub(crate) first_token_timeout: Option<Duration>,
    /// Ends an attempt at this age.
    pub(crate) max_time: Option<Duration>,
    /// How long an answer may be held back until its first content.
    pub(crate) hold: Option<Duration>,
    /// The interval of the upstream's heartbeats, by which alone a local model is judged; it then
    /// has neither `step_timeout` nor `first_token_timeout`.
    pub(crate) heartbeat: Option<Duration>,
    /// Whether the limits only give notices and end no attempt.
    pub(crate) observe: bool,
}

/// The limit on silent attempts of a run in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IdleBreaker {
    /// The number of silent attempts in a row that trips the breaker.
    pub(crate) silent: u32,
    /// Whether the run then goes on with the next candidate; otherwise it ends.
    pub(crate) fails_over: bool,
}

/// `[fallback]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Fallback {
    /// Whether calls pass over a candidate for a while after its failures.
    pub(crate) cooldown: bool,
    /// Whether a session stays with the candidate that served it.
    pub(crate) sticky: bool,
}

impl Config {
    /// Reads and resolves the file at `path`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or for the first mistake in it.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &name),
            Err(error) => Err(ConfigError::unreadable(&name, error)),
        }
    }

    /// Whether a caller must show a key; without `[auth]` every caller is served.
    ///
    /// The program listens beyond loopback only if this is true. A server that uses the
    /// [`app`](crate::app) must check the same itself.
    #[must_use]
    pub const fn needs_key(&self) -> bool {
        self.auth.is_some()
    }

    /// Resolves the TOML document `text`; errors call it `source_name`.
    ///
    /// # Errors
    ///
    /// For the first mistake in the document.
    pub fn parse(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        resolve::config(text, |variable| std::env::var(variable).ok())
            .map_err(|problem| ConfigError::new(text, source_name, problem))
    }
}
