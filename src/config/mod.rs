//! A configuration of an agent's stack, in TOML, JSON or any other format of serde.
//!
//! [`AgentConfig`] reads the tables that `docs/config.md` lists, and the names and shapes that
//! agents' own configurations use, such as `agents.defaults.stepTimeoutSeconds`. A mistake in a key
//! is an error that names the key, because an operator would notice an ignored limit only when an
//! incident needs it. An absent limit is off unless `docs/config.md` lists a default. With
//! `preset = "recommended"` the limits of that preset replace absent ones.
//!
//! A server that adds tables [parses](parse_toml) the document, removes its tables, and reads each
//! with [`read_table`] into types with [`Span`], [`BoundedCount`], [`Amount`] and [`Url`]. The rest of the
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

mod base_url;
mod candidates;
mod document;
mod error;
mod key;
mod limits;
mod place;
mod presets;
mod resolve;
#[cfg(feature = "schema")]
mod schema;
mod stack;
mod tables;
mod values;
mod variable_name;

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};

use self::{
    document::Reading,
    limits::{AgentLimits, DEFAULTS},
    tables::{
        AttemptTable, DisconnectTable, FallbackTable, File, LoopsTable, ProgressTable, RetryTable,
        RunTable, SignalTable,
    },
};

pub use self::{
    error::ConfigError,
    key::KeyPart,
    tables::CandidateTable,
    values::{Amount, BoundedCount, BoundedNumber, Span, Url},
};

/// A checked configuration: see the [module](self).
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The limits of a caller that is not an agent with a table in `agents`.
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
    signals: Vec<SignalTable>,
}

/// Parses a TOML document.
///
/// # Errors
///
/// If the text is not TOML, with the line and the column of the mistake.
pub fn parse_toml(text: &str) -> Result<toml::Table, ConfigError> {
    text.parse()
        .map_err(|error: toml::de::Error| ConfigError::of_toml(&error, text))
}

/// Reads a type from a part of a TOML document; an error names the keys in that part.
///
/// # Errors
///
/// For each key that is unknown, missing, or has a wrong value.
pub fn read_table<T: DeserializeOwned>(table: toml::Table) -> Result<T, ConfigError> {
    match read_table_partly(table) {
        (Some(value), None) => Ok(value),
        (_, error) => Err(error.unwrap_or_else(|| ConfigError::new([""; 0], "is not a table"))),
    }
}

/// Does the same as [`read_table`], and also returns the value without its mistakes.
///
/// The value is `None` if the table cannot be read at all. It is for further checks alone, so that
/// one error names all mistakes of a document; [`ConfigError::concerns`] says which parts the value
/// lacks.
#[must_use]
pub fn read_table_partly<T: DeserializeOwned>(
    table: toml::Table,
) -> (Option<T>, Option<ConfigError>) {
    let reading = Reading::of_toml(table);
    (reading.value, ConfigError::join(reading.errors))
}

impl AgentConfig {
    /// Reads a TOML document.
    ///
    /// # Errors
    ///
    /// For all mistakes, each with its line and column, unless the document has neither the key of
    /// the mistake nor a table above that key. A text that is not TOML has one mistake.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let table = parse_toml(text)?;
        Self::from_table(table).map_err(|error| error.in_toml(text))
    }

    /// Reads a parsed TOML document, such as one from which a server has removed its tables.
    ///
    /// # Errors
    ///
    /// For all mistakes; [`ConfigError::in_toml`] finds their lines and columns.
    pub fn from_table(table: toml::Table) -> Result<Self, ConfigError> {
        match Self::from_table_partly(table) {
            (config, None) => Ok(config),
            (_, Some(error)) => Err(error),
        }
    }

    /// Does the same as [`from_table`](Self::from_table), and also returns the configuration
    /// without its mistakes.
    ///
    /// That configuration is for further checks alone, so that one error names the mistakes of this
    /// crate's tables and of a server's own; [`ConfigError::concerns`] says which parts it lacks.
    #[must_use]
    pub fn from_table_partly(table: toml::Table) -> (Self, Option<ConfigError>) {
        let (config, errors) = Self::check(Reading::of_toml(table));
        (config, ConfigError::join(errors))
    }

    /// Reads a JSON document.
    ///
    /// # Errors
    ///
    /// For all mistakes, each with its line and column; a text that is not JSON has one.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let (config, errors) = Self::check(Reading::of_json(text));
        match ConfigError::join(errors) {
            None => Ok(config),
            Some(error) => Err(error.in_json(text)),
        }
    }

    /// The configuration as a document with the values in force, under this crate's names.
    ///
    /// The document leaves out an absent key if its default is off, unknown, or another key's
    /// value, and each table without a key. An agent's table leaves out `observe`, `ask_at`, `near_at`,
    /// `count_cached_input` and `idle_fails_over` if they equal the inherited ones. The document reads as the same
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
            signals: &'a [SignalTable],
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
        let document = toml::Table::try_from(Document {
            run: self.defaults.run,
            attempt: self.attempt,
            retry: self.defaults.retry,
            fallback: self.fallback,
            disconnect: self.disconnect,
            stop: (!self.stop.is_empty()).then_some(phrases),
            loops: &self.loops,
            progress: self.progress,
            candidates: &self.candidates,
            signals: &self.signals,
            agents: agents.chain(of_all.map(|it| (DEFAULTS, it))).collect(),
        });
        let mut document =
            document.map_err(|error| ConfigError::new([""; 0], error.to_string()))?;
        document.retain(|_, value| match value {
            toml::Value::Table(table) => !table.is_empty(),
            toml::Value::Array(list) => !list.is_empty(),
            _ => true,
        });
        Ok(document)
    }

    /// The entries of `[[candidates]]`, as they are written.
    #[must_use]
    pub fn candidate_tables(&self) -> &[CandidateTable] {
        &self.candidates
    }

    /// Settings that can be used and can hardly be meant, as an error would name them: the base URL
    /// of a known provider without the path of its API, an `idle` that is not shorter than the
    /// limits of its runs, so that a run that is done stays open for longer than one that works, a
    /// `step_timeout` or `max_time` of attempts that is not shorter than the age at which a run ends, and the
    /// [`cost_warnings`](Self::cost_warnings) if a run has a cap on its cost.
    ///
    /// [`ConfigError::in_toml`] finds their places.
    #[must_use]
    pub fn warnings(&self) -> Option<ConfigError> {
        let of_agents = self.agents.iter();
        let of_agents = of_agents.map(|(name, limits)| (vec!["agents", name], limits));
        let all = std::iter::once((vec!["run"], &self.defaults)).chain(of_agents);
        let idle = all.filter_map(|(mut table, limits)| {
            let (idle, ceiling) = limits.long_idle()?;
            // An agent that sets neither has the warning of all.
            if table[0] == "agents" && self.defaults.long_idle() == Some((idle, ceiling)) {
                return None;
            }
            table.push("idle");
            let message = format!(
                "{idle:?} is not shorter than the {ceiling:?} after which a run ends: a run that is \
                 done stays open for longer than one that works"
            );
            Some(ConfigError::new(table, message))
        });
        let ends = self.attempts_after_the_end().map(|(key, window, end)| {
            let message = format!(
                "{window:?} is not shorter than the {end:?} after which a run ends: no other attempt could \
                 follow"
            );
            ConfigError::new(["attempt", key], message)
        });
        let urls = self.candidates.iter().filter_map(|candidate| {
            let url = candidate.base_url.get();
            let whole = base_url::with_provider_path(url)?;
            let message =
                format!("\"{url}\" is not where this provider has its API: write {whole:?}");
            Some(ConfigError::new(candidate.path("base_url"), message))
        });
        let costs = self.caps_cost().then(|| self.cost_warnings()).flatten();
        ConfigError::join(idle.chain(ends).chain(urls).chain(costs))
    }

    /// The limits of an attempt that the earliest end of a run comes before, with both times.
    fn attempts_after_the_end(
        &self,
    ) -> impl Iterator<Item = (&'static str, Duration, Duration)> + use<> {
        let all = self.agents.values().chain([&self.defaults]);
        let end = all.filter_map(AgentLimits::end).min();
        let end = end.filter(|_| !self.attempt.observe);
        let limits = [
            ("step_timeout", self.attempt.step_timeout),
            ("max_time", self.attempt.max_time),
        ];
        let limits = limits
            .into_iter()
            .filter_map(|(key, limit)| Some((key, limit.and_then(Span::limit)?)));
        limits.filter_map(move |(key, limit)| {
            let end = end.filter(|end| *end <= limit)?;
            Some((key, limit, end))
        })
    }

    /// Candidates whose tokens a cap on cost does not count, or not all of them, as an error would
    /// name them: without a `price`, or with a `price` without `cached_input`.
    ///
    /// [`warnings`](Self::warnings) has them if a run has a cap on its cost; a server with such caps
    /// of its own adds them.
    #[must_use]
    pub fn cost_warnings(&self) -> Option<ConfigError> {
        ConfigError::join(self.candidates.iter().filter_map(|candidate| {
            let Some(price) = &candidate.price else {
                let message = "has no `price`: what it serves costs nothing under a cap on cost";
                let [list, index, _] = candidate.path("price");
                return Some(ConfigError::new([list, index], message));
            };
            let message = "has no `cached_input`: cached tokens cost nothing under a cap on cost; if \
                           that is meant, write cached_input = 0";
            let is_missing = price.cached_input.is_none();
            is_missing.then(|| ConfigError::new(candidate.path("price"), message))
        }))
    }

    /// Whether a run of an agent, or of all, has a cap on its cost.
    #[must_use]
    pub fn caps_cost(&self) -> bool {
        let mut all = std::iter::once(&self.defaults).chain(self.agents.values());
        all.any(|limits| limits.run.max_cost.and_then(Amount::limit).is_some())
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

    /// Sets `near_at` where the document leaves it out, for all runs that have a cap: for a server
    /// that hands [`NearCap`](crate::RunNotice::NearCap) on.
    ///
    /// ```
    /// use tower_agent::config::AgentConfig;
    ///
    /// let document = "[run]\nmax_turns = 5\n[agents.coder]\nnear_at = 0";
    /// let printed = AgentConfig::from_toml(document)?.default_near_at(0.8).to_toml()?;
    /// assert_eq!(printed["run"]["near_at"].as_float(), Some(0.8));
    /// assert_eq!(printed["agents"]["coder"]["near_at"].as_float(), Some(0.0));
    /// # Ok::<_, tower_agent::config::ConfigError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// Panics if `part` is not a number above 0 and up to 1.
    #[must_use]
    pub fn default_near_at(mut self, part: f64) -> Self {
        assert!(part > 0.0 && part <= 1.0, "a part of a cap is from 0 to 1");
        let of_agents = self.agents.values_mut();
        let all = std::iter::once(&mut self.defaults).chain(of_agents);
        all.for_each(|limits| limits.set_near_at(part));
        self
    }

    /// Whether a candidate has a price.
    #[must_use]
    pub fn has_prices(&self) -> bool {
        self.candidates.iter().any(|it| it.price.is_some())
    }

    /// The interval of the signs of life in a stream that is silent; `None` without `[progress]`.
    #[must_use]
    pub fn keep_alive(&self) -> Option<Duration> {
        self.progress?.keep_alive?.limit()
    }

    /// Whether repeated tool calls are counted.
    #[must_use]
    pub const fn detects_loops(&self) -> bool {
        self.loops.is_some()
    }
}

impl<'de> Deserialize<'de> for AgentConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file: Result<File, _> = serde_path_to_error::deserialize(deserializer);
        let reading = Reading::of_result(file.map_err(|error| {
            ConfigError::new([""; 0], error.inner().to_string()).at(error.path())
        }));
        let (config, errors) = Self::check(reading);
        match ConfigError::join(errors) {
            None => Ok(config),
            Some(error) => Err(serde::de::Error::custom(error)),
        }
    }
}
