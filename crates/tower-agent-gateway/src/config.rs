//! The gateway's configuration: a TOML file, checked and resolved before anything listens.
//!
//! An absent limit is off, and so is `"0s"`; `preset = "recommended"` fills in what the file
//! leaves out. Whatever is wrong is one error that names the key and its place in the file,
//! because a limit that was silently ignored is found out at 3 a.m.

use std::fs;
use std::num::NonZeroUsize;
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

pub use self::error::ConfigError;
pub(crate) use self::{
    agents::Agent,
    auth::{Auth, Key},
    candidates::{Candidate, Dialect},
    cors::Cors,
    loops::Loops,
    progress::Progress,
    retry::{Retry, SharedBudget},
    run::RunLimits,
    secret::Secret,
    server::ServerLimits,
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
    /// Whether a call ends when its caller would give up, as its headers say.
    pub(crate) caller_deadline: bool,
    /// How many frames the pump holds for a slow reader.
    pub(crate) pump_frames: NonZeroUsize,
    /// How long an answer is read for whose caller has left; `None` cancels it.
    pub(crate) drain: Option<Duration>,
    /// What a caller of the control routes must present, if anything.
    pub(crate) control_token: Option<Secret>,
    /// How long what is under way may go on once the process is told to end; `None` ends it.
    pub(crate) shutdown_drain: Option<Duration>,
    /// The words that end the other runs of a session.
    pub(crate) stop: Option<Vec<String>>,
    /// When a run goes in circles.
    pub(crate) loops: Option<Loops>,
    /// What is said of calls that take long.
    pub(crate) progress: Option<Progress>,
    /// Whose calls are served; `None`: anybody's.
    pub(crate) auth: Option<Auth>,
    /// Which pages of other origins may call.
    pub(crate) cors: Option<Cors>,
    /// How often what failed is tried again.
    pub(crate) retry: Retry,
    /// Callers to whom other limits apply than to the rest, by the name of their key.
    pub(crate) agents: Vec<Agent>,
    /// Whom a call goes to when another candidate has failed before.
    pub(crate) fallback: Fallback,
    /// The models that serve, and where to reach them, in the order in which they are tried.
    /// At least one, and no two of one name.
    pub(crate) candidates: Vec<Candidate>,
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

impl Config {
    /// Reads and resolves the file at `path`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or for the first thing in it that is wrong.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &name),
            Err(error) => Err(ConfigError::unreadable(&name, error)),
        }
    }

    /// Whether a caller must show a key: without `[auth]` each caller is served.
    ///
    /// The program listens beyond loopback only if so; a server of one's own must see to it.
    #[must_use]
    pub const fn needs_key(&self) -> bool {
        self.auth.is_some()
    }

    /// Resolves the TOML document `text`; errors call it `source_name`.
    ///
    /// # Errors
    ///
    /// For the first thing that is wrong.
    pub fn parse(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        resolve::config(text, |variable| std::env::var(variable).ok())
            .map_err(|problem| ConfigError::new(text, source_name, problem))
    }
}
