//! A configuration of an agent's stack, in TOML, JSON or any other format of serde.
//!
//! [`AgentConfig`] reads the tables that `docs/config.md` lists, and the names and shapes that
//! agents' own configurations use, such as `agents.defaults.stepTimeoutSeconds`. A mistake in a key
//! is an error that names the key, because an operator would notice an ignored limit only when an
//! incident needs it. An absent limit is off unless `docs/config.md` lists a default. With
//! `preset = "recommended"` the limits of that preset replace absent ones.
//!
//! A server that adds tables [parses](parse_toml) the document, removes its tables, and reads each
//! with [`read_table`] into types with [`Time`], [`BoundedCount`], [`Amount`] and [`Url`]. The rest of the
//! document goes to [`AgentConfig::from_table`].
//!
//! ```
//! use tower_agent::{AgentStack, RunRegistry, config::AgentConfig};
//!
//! # fn main() -> Result<(), tower_agent::config::ConfigError> {
//! let config = AgentConfig::from_toml(
//!     r#"
//!     preset = "recommended"
//!     [run]
//!     max_turn_time = "30m"
//!     [[candidates]]
//!     model = "large"
//!     base_url = "http://127.0.0.1:8000/v1"
//!     "#,
//! )?;
//! let stack = AgentStack::server(&RunRegistry::new()).configure(&config)?;
//! assert!(format!("{stack:?}").contains("1800s"));
//!
//! let wrong = AgentConfig::from_toml("[run]\nmax_turn_time = \"soon\"").unwrap_err();
//! assert_eq!((wrong.key().as_str(), wrong.position()), ("run.max_turn_time", Some((2, 17))));
//! # Ok(())
//! # }
//! ```

mod error;
mod stack;
mod tables;
mod validation;
mod values;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use self::{
    tables::{
        AttemptTable, DisconnectTable, FallbackTable, LoopsTable, ProgressTable, RetryTable,
        RunTable,
    },
    validation::{AgentLimits, DEFAULTS},
};

pub use self::{
    error::{ConfigError, KeyPart, parse_toml, read_table},
    tables::CandidateTable,
    values::{Amount, BoundedCount, BoundedNumber, Time, Url},
};

/// A checked configuration: see the [module](self).
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The limits of a caller that is no agent with a table in `agents`.
    defaults: AgentLimits,
    /// Whether `agents.defaults` has the `ask_at` of all agents, and not `[run]`.
    defaults_ask: bool,
    /// The complete limits of each agent with a table, by name.
    agents: BTreeMap<String, AgentLimits>,
    attempt: AttemptTable,
    disconnect: DisconnectTable,
    fallback: FallbackTable,
    stop: Vec<String>,
    loops: Option<LoopsTable>,
    progress: Option<ProgressTable>,
    candidates: Vec<CandidateTable>,
}

impl AgentConfig {
    /// Reads a TOML document.
    ///
    /// # Errors
    ///
    /// For the first mistake. The error has its line and column, unless the document has neither
    /// the key that the error names nor a table above that key.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let table = parse_toml(text)?;
        Self::from_table(table).map_err(|error| error.in_toml(text))
    }

    /// Reads a parsed TOML document, such as one from which a server has removed its tables.
    ///
    /// # Errors
    ///
    /// For the first mistake; [`ConfigError::in_toml`] finds its line and column.
    pub fn from_table(table: toml::Table) -> Result<Self, ConfigError> {
        Self::check(read_table(table)?)
    }

    /// Reads a JSON document.
    ///
    /// # Errors
    ///
    /// For the first mistake.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let mut json = serde_json::Deserializer::from_str(text);
        let file = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| ConfigError::of_json(error.inner()).at(error.path()))?;
        json.end().map_err(|error| ConfigError::of_json(&error))?;
        Self::check(file)
    }

    /// The configuration as a document with the values in force, under this crate's names.
    ///
    /// The document leaves out an absent key if its default is off, unknown, or another key's
    /// value. An agent's table leaves out `observe`, `ask_at`, `count_cached_input` and
    /// `idle_fails_over` if they equal the inherited ones. The document reads as the same
    /// configuration.
    ///
    /// ```
    /// use tower_agent::config::AgentConfig;
    ///
    /// let config = AgentConfig::from_toml("[agents.defaults]\nstepTimeoutSeconds = 90")?;
    /// let printed = config.to_toml()?;
    /// assert_eq!(printed["run"]["step_timeout"].as_str(), Some("1m 30s"));
    /// assert_eq!(printed["retry"]["max_attempts_per_candidate"].as_integer(), Some(1));
    /// # Ok::<_, tower_agent::config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// For a number that TOML cannot hold, such as a context window beyond 2⁶³ from JSON.
    pub fn to_toml(&self) -> Result<toml::Table, ConfigError> {
        #[derive(Serialize)]
        struct Document<'a> {
            run: RunTable,
            attempt: AttemptTable,
            retry: RetryTable,
            fallback: FallbackTable,
            disconnect: DisconnectTable,
            stop: Option<BTreeMap<&'a str, &'a [String]>>,
            loops: &'a Option<LoopsTable>,
            progress: Option<ProgressTable>,
            candidates: &'a [CandidateTable],
            agents: BTreeMap<&'a str, AgentLimits>,
        }
        let phrases = BTreeMap::from([("phrases", &*self.stop)]);
        // `[run]` and `[retry]` have all other limits of `agents.defaults`.
        let notify_after = self.defaults.notify_after;
        let of_all = notify_after.map(|_| AgentLimits {
            notify_after,
            ..AgentLimits::default()
        });
        let agents = self.agents.iter();
        let agents = agents.map(|(name, own)| (&**name, own.without_inherited(&self.defaults)));
        toml::Table::try_from(Document {
            run: self.defaults.run,
            attempt: self.attempt,
            retry: self.defaults.retry,
            fallback: self.fallback,
            disconnect: self.disconnect,
            stop: (!self.stop.is_empty()).then_some(phrases),
            loops: &self.loops,
            progress: self.progress,
            candidates: &self.candidates,
            agents: agents.chain(of_all.map(|it| (DEFAULTS, it))).collect(),
        })
        .map_err(|error| ConfigError::new([""; 0], error.to_string()))
    }

    /// The entries of `[[candidates]]`, as they are written.
    #[must_use]
    pub fn candidate_tables(&self) -> &[CandidateTable] {
        &self.candidates
    }

    /// The names of the agents that have a table with limits.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        self.agents.keys().map(String::as_str)
    }

    /// The path of the first `ask_at` key that is above zero; `None` if there is none.
    ///
    /// An `ask_at` above zero needs a [`Watchdog`](crate::Watchdog) with a question, which is asked
    /// before a cap on tokens or cost ends the run.
    #[must_use]
    pub fn ask_at(&self) -> Option<Vec<&str>> {
        let asks = |limits: &AgentLimits| limits.run.ask_at.is_some_and(|part| part.0 > 0.0);
        if asks(&self.defaults) {
            return Some(match self.defaults_ask {
                true => vec!["agents", DEFAULTS, "ask_at"],
                false => vec!["run", "ask_at"],
            });
        }
        let (name, _) = self.agents.iter().find(|(_, limits)| asks(limits))?;
        Some(vec!["agents", name, "ask_at"])
    }

    /// Whether a candidate has a price.
    #[must_use]
    pub fn has_prices(&self) -> bool {
        self.candidates.iter().any(|it| it.price.is_some())
    }

    /// Whether repeated tool calls are counted.
    #[must_use]
    pub const fn detects_loops(&self) -> bool {
        self.loops.is_some()
    }
}

impl<'de> Deserialize<'de> for AgentConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file = serde_path_to_error::deserialize(deserializer)
            .map_err(|error| ConfigError::new([""; 0], error.inner().to_string()).at(error.path()));
        file.and_then(Self::check).map_err(serde::de::Error::custom)
    }
}
