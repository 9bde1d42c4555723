//! The gateway's configuration: a TOML file, checked before anything listens.
//!
//! The tables of the stack are those of [`AgentConfig`]; beside them stand the gateway's own.

use std::{collections::BTreeMap, path::Path, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use tower_agent::{
    Candidate,
    config::{AgentConfig, ConfigError, Span, parse_toml, read_table_partly},
    layers::run::KnownAgents,
};
use tower_agent_hyper::UpstreamProxy;

mod auth;
mod byte_size;
mod cors;
mod file;
mod health_gate;
mod known_agents;
mod memory;
mod owner_caps;
mod replicas;
mod schema;
mod secret;
mod server;
mod telemetry;
#[cfg(test)]
mod tests;
mod time_zone;
mod watchdog_services;
mod webhooks;

use self::{owner_caps::CAP_KEYS, secret::SecretSource};

pub(crate) use self::{
    auth::{Auth, Key},
    cors::Cors,
    health_gate::Health,
    replicas::Replicas,
    secret::{Secret, secret_file},
    server::{MAX_BODY, ServerLimits, WebSocketSettings},
    telemetry::TelemetrySettings,
    watchdog_services::WatchdogServices,
    webhooks::{Webhook, WebhookKind},
};

/// A configuration in which every value is usable as it stands.
#[derive(Debug, Clone)]
pub struct Config {
    /// The configuration of the stacks for callers' requests.
    pub(crate) agent: AgentConfig,
    /// The models and their upstreams, in the order of the file; at least one.
    pub(crate) candidates: Vec<Candidate>,
    /// The limits of connections.
    pub(crate) server: ServerLimits,
    /// The proxy of requests to upstreams, and of the gateway's other requests.
    pub(crate) proxy: UpstreamProxy,
    /// The token that a request to the operator's routes must carry, if any.
    pub(crate) control_token: Option<Secret>,
    /// How long runs may go on after the signal to stop; `None` ends them at once.
    pub(crate) shutdown_drain: Option<Duration>,
    /// The probes of an upstream; while it restarts, calls wait.
    pub(crate) health: Option<Health>,
    /// The services that examine runs that look stuck.
    pub(crate) watchdog: Option<WatchdogServices>,
    /// The keys of which a caller must show one; `None` serves every caller.
    pub(crate) auth: Option<Auth>,
    /// The other origins from which pages may call.
    pub(crate) cors: Option<Cors>,
    /// The agents that get runs for requests without `x-run-id`.
    pub(crate) known_agents: KnownAgents,
    /// The receiver of spans; with `None` no span is made.
    pub(crate) telemetry: Option<TelemetrySettings>,
    /// The store that several gateways share; with `None` the runs are this process' alone.
    pub(crate) replicas: Option<Replicas>,
    /// The receivers of webhooks.
    pub(crate) webhooks: Vec<Webhook>,
    /// Settings that can hardly be meant, with their places.
    warnings: Option<ConfigError>,
    /// The gateway's own tables as they are written, without a proxy's credential.
    own: toml::Table,
}

/// The tables that the gateway has beside those of the stack.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct OwnTables {
    /// The limits of connections and of uploads, and the proxy of the gateway's own requests.
    server: server::ServerTable,
    /// The operator's token, and the drain at a shutdown.
    control: ControlTable,
    /// The callers' keys, and the caps of each owner.
    auth: Option<owner_caps::AuthTable>,
    /// The caps of the owners with tables of their own; all else in these is the stack's.
    #[schemars(skip)]
    agents: BTreeMap<String, owner_caps::CapsTable>,
    /// The other origins from which pages may call.
    cors: Option<cors::CorsTable>,
    /// The probes of an upstream that restarts; calls wait meanwhile.
    health: Option<health_gate::HealthTable>,
    /// The services that examine runs that look stuck.
    watchdog: Option<watchdog_services::WatchdogTable>,
    /// How requests without `x-run-id` get their runs.
    known_agents: known_agents::KnownAgentsTable,
    /// The receiver of spans.
    telemetry: Option<telemetry::TelemetryTable>,
    /// The store by which several gateways share their runs.
    replicas: Option<replicas::ReplicasTable>,
    /// The receivers of what ended and of what needs a person.
    webhooks: Vec<webhooks::WebhookTable>,
}

/// The names of [`OwnTables`], but for `agents`.
const OWN: [&str; 10] = [
    "server",
    "control",
    "auth",
    "cors",
    "health",
    "watchdog",
    "known_agents",
    "telemetry",
    "replicas",
    WEBHOOKS,
];

/// The one of these that is a list of tables.
const WEBHOOKS: &str = "webhooks";

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
struct ControlTable {
    /// The environment variable that holds the operator's token.
    token_env: Option<String>,
    /// The absolute path of a file that holds the token, in place of `token_env`.
    #[schemars(regex(pattern = "^/"))]
    token_file: Option<String>,
    /// How long work may go on at a shutdown. Off by default.
    drain: Option<Span>,
}

impl Config {
    /// Reads and resolves the file at `path`, which must be a regular one of at most 1 MiB.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or for all mistakes in it, one a line.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        match file::read(path) {
            Ok(text) => Self::parse(&text, &name),
            Err(message) => Err(ConfigError::new([""; 0], message).in_file(name)),
        }
    }

    /// The file at `path` as a TOML document with the values in force.
    ///
    /// The values are those of the stack, see [`AgentConfig::to_toml`], and those of `[server]`. The
    /// gateway's other tables are as they are written. No table is empty. Secrets stay in the
    /// environment, and the credential in a proxy's URL is hidden.
    ///
    /// # Errors
    ///
    /// The errors of [`load`](Self::load) and of [`AgentConfig::to_toml`].
    pub fn print(path: impl AsRef<Path>) -> Result<String, ConfigError> {
        let path = path.as_ref();
        let config = Self::load(path)?;
        let in_file = |error: ConfigError| error.in_file(path.display().to_string());
        let mut document = config.agent.to_toml().map_err(in_file)?;
        let mut own = config.own;
        if let Some(toml::Value::Table(caps)) = own.remove("agents") {
            merge(&mut document, "agents", caps);
        }
        let written = own.remove("server");
        let proxy = written.as_ref().and_then(|server| server.get("proxy"));
        let proxy = proxy.and_then(toml::Value::as_str);
        own.insert("server".to_owned(), config.server.to_toml(proxy).into());
        document.extend(own);
        document.retain(|_, table| !is_empty(table));
        toml::to_string(&document)
            .map_err(|error| in_file(ConfigError::new([""; 0], error.to_string())))
    }

    /// The JSON Schema of a configuration, draft 7, as the text of a JSON document.
    ///
    /// It refuses unknown keys, values of a wrong type or outside of their range, and a document without
    /// candidates. What one key says about another, [`parse`](Self::parse) alone checks.
    #[must_use]
    pub fn schema() -> String {
        schema::of_document()
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
    /// For all mistakes in the document, one a line.
    pub fn parse(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        let placed = |error: ConfigError| error.in_toml(text).in_file(source_name);
        let mut config =
            Self::resolve(text, |variable| std::env::var(variable).ok()).map_err(placed)?;
        config.warnings = config.warnings.map(placed);
        Ok(config)
    }

    /// Settings that can be used and can hardly be meant, each as an error would name it.
    pub fn warnings(&self) -> impl Iterator<Item = ConfigError> {
        self.warnings.iter().flat_map(ConfigError::each)
    }

    /// Resolves a document; `env` looks up the variables that it names.
    ///
    /// What a mistake leaves unread is not checked against other tables: the error would name what
    /// follows from the mistake.
    pub(crate) fn resolve(
        text: &str,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let mut tables = parse_toml(text)?;
        let own = OWN.into_iter();
        let own = own.filter_map(|name| tables.remove_entry(name)).collect();
        let mut written: toml::Table = own;
        let mut mistakes = Mistakes::default();
        written.extend(take_caps(&mut tables, &mut mistakes));
        let own = mistakes.own_tables(written.clone());
        server::hide_credential(&mut written);
        let (agent, of_agent) = AgentConfig::from_table_partly(tables);
        mistakes.extend(
            of_agent
                .iter()
                .flat_map(ConfigError::each)
                .map(with_own_tables),
        );
        let knows_candidates = mistakes.spare(&["candidates"]);
        let knows_actions = mistakes.spare(&["preset", "run", "agents", "loops", "tools"]);

        if agent.candidate_tables().is_empty() && knows_candidates {
            let message = "no candidate: add one [[candidates]] with `model` and `base_url`";
            mistakes.extend([ConfigError::new([""; 0], message)]);
        }
        let candidates = mistakes.note(agent.candidates(&env)).unwrap_or_default();
        let token = SecretSource::of(
            "control",
            ("token_env", own.control.token_env.as_ref()),
            ("token_file", own.control.token_file.as_ref()),
        );
        let token = token.and_then(|source| source.map(|it| it.secret(&env)).transpose());
        let control_token = mistakes.note(token).flatten();
        let has_auth = own.auth.is_some() || !mistakes.spare(&["auth"]);
        let has_prices = agent.has_prices() || !knows_candidates;
        let auth = own.auth.filter(|_| mistakes.spare(&["auth"]));
        let auth = auth.map(|table| {
            auth::auth(
                &table,
                &own.agents,
                control_token.as_ref(),
                has_prices,
                &env,
            )
        });
        let auth = mistakes.note(auth.transpose()).flatten();
        if mistakes.spare(&["auth"]) {
            mistakes.note(auth::check_agents(&agent, auth.as_ref()));
        }
        let cors = own.cors.filter(|_| mistakes.spare(&["cors"]));
        let cors = cors.map(|table| cors::cors(&table, has_auth));
        let cors = mistakes.note(cors.transpose()).flatten();
        let known = knows_candidates.then(|| agent.candidate_tables());
        let health = own.health.filter(|_| mistakes.spare(&["health"]));
        let health = health.map(|table| health_gate::health(table, known));
        let health = mistakes.note(health.transpose()).flatten();
        let watchdog = match knows_actions && mistakes.spare(&["watchdog"]) {
            true => watchdog_services::watchdog(own.watchdog, &agent),
            false => Ok(None),
        };
        let watchdog = mistakes.note(watchdog).flatten();
        let known_agents = match mistakes.spare(&["known_agents"]) {
            true => known_agents::known_agents(&own.known_agents),
            false => Ok(KnownAgents::none()),
        };
        let known_agents = mistakes.note(known_agents);
        let proxy = mistakes.note(server::proxy(&own.server));
        let telemetry = own.telemetry.filter(|_| mistakes.spare(&["telemetry"]));
        let telemetry = mistakes.note(telemetry.map(telemetry::telemetry).transpose());
        let replicas = own.replicas.filter(|_| mistakes.spare(&["replicas"]));
        let replicas = replicas.map(|table| replicas::replicas(table, &env));
        let replicas = mistakes.note(replicas.transpose()).flatten();
        let webhooks = match mistakes.spare(&[WEBHOOKS]) {
            true => webhooks::webhooks(&own.webhooks, &env),
            false => Ok(Vec::new()),
        };
        let webhooks = mistakes.note(webhooks).unwrap_or_default();
        let wants_near_caps = |webhook: &Webhook| webhook.wants(WebhookKind::NearCap, None);
        let agent = match webhooks.iter().any(wants_near_caps) {
            true => agent.default_near_at(webhooks::NEAR_AT),
            false => agent,
        };
        mistakes.none()?;
        let caps_cost = auth.as_ref().is_some_and(|auth| auth.caps_cost);
        // The library has the same warnings beside its own cap on cost.
        let of_costs = (caps_cost && !agent.caps_cost()).then(|| agent.cost_warnings());
        let warnings = agent.warnings().into_iter().chain(of_costs.flatten());
        Ok(Self {
            cors,
            health,
            watchdog,
            known_agents: known_agents.unwrap_or_else(KnownAgents::none),
            telemetry: telemetry.flatten(),
            replicas,
            webhooks,
            server: own.server.into(),
            proxy: proxy.unwrap_or_default(),
            shutdown_drain: own.control.drain.and_then(Span::limit),
            control_token,
            auth,
            candidates,
            warnings: ConfigError::join(warnings),
            agent,
            own: written,
        })
    }
}

/// The mistakes of a document that were found so far.
#[derive(Default)]
struct Mistakes(Vec<ConfigError>);

impl Mistakes {
    /// Reads the gateway's own tables; one that cannot be read at all is absent.
    fn own_tables(&mut self, mut tables: toml::Table) -> OwnTables {
        // serde would read the values of a list in the order of the table's fields.
        let lists = OWN
            .into_iter()
            .filter(|name| *name != WEBHOOKS)
            .filter(|name| tables.get(*name).is_some_and(toml::Value::is_array));
        for name in lists.collect::<Vec<_>>() {
            tables.remove(name);
            let message = "invalid type: sequence, expected a table";
            self.0.push(ConfigError::new([name], message));
        }
        let (own, error) = read_table_partly(tables);
        self.0.extend(error);
        own.unwrap_or_default()
    }

    /// Takes the error of a result.
    fn note<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    fn extend(&mut self, errors: impl IntoIterator<Item = ConfigError>) {
        self.0.extend(errors);
    }

    /// Whether no mistake concerns one of these tables.
    fn spare(&self, tables: &[&str]) -> bool {
        let concerns = |error: &ConfigError| tables.iter().any(|table| error.concerns(&[table]));
        !self.0.iter().any(concerns)
    }

    /// # Errors
    ///
    /// All mistakes, if there is one.
    fn none(self) -> Result<(), ConfigError> {
        ConfigError::join(self.0).map_or(Ok(()), Err)
    }
}

/// Takes the owners' caps out of the tables `[agents.NAME]`, into a table of the same form.
/// Those of `agents.defaults` are a mistake.
fn take_caps(tables: &mut toml::Table, mistakes: &mut Mistakes) -> toml::Table {
    let mut taken = toml::Table::new();
    let Some(agents) = tables.get_mut("agents").and_then(toml::Value::as_table_mut) else {
        return taken;
    };
    for (name, table) in agents {
        let Some(table) = table.as_table_mut() else {
            continue;
        };
        let keys = CAP_KEYS.iter().filter_map(|key| table.remove_entry(*key));
        let caps: toml::Table = keys.collect();
        if name == "defaults" {
            let wrong = |key: &String| {
                let message = "stands in [auth] for all owners";
                ConfigError::new(["agents", "defaults", key.as_str()], message)
            };
            mistakes.extend(caps.keys().map(wrong));
        } else if !caps.is_empty() {
            taken.insert(name.clone(), caps.into());
        }
    }
    match taken.is_empty() {
        true => taken,
        false => toml::Table::from_iter([("agents".to_owned(), taken.into())]),
    }
}

/// Whether a value is a table or a list without anything in it.
fn is_empty(value: &toml::Value) -> bool {
    match value {
        toml::Value::Table(table) => table.is_empty(),
        toml::Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

/// Adds the tables below `key` to those of the same names.
fn merge(document: &mut toml::Table, key: &str, tables: toml::Table) {
    let all = document
        .entry(key)
        .or_insert_with(|| toml::Table::new().into());
    let Some(all) = all.as_table_mut() else {
        return;
    };
    for (name, table) in tables {
        match (all.get_mut(&name), table) {
            (Some(toml::Value::Table(known)), toml::Value::Table(table)) => known.extend(table),
            (_, table) => drop(all.insert(name, table)),
        }
    }
}

/// Adds the gateway's own tables to the list in an error about an unknown table, and the caps of owners
/// to that about a key of an agent's.
fn with_own_tables(error: ConfigError) -> ConfigError {
    let key = error.key();
    if error.concerns(&["agents"]) && error.message().starts_with("unknown key") {
        let caps = CAP_KEYS.iter().map(|key| format!("`{key}`"));
        let caps = caps.collect::<Vec<_>>().join(", ");
        let message = format!("{}, {caps}", error.message());
        return error.with_message(message);
    }
    let is_table = !key.contains(['.', '[']) && error.message().starts_with("unknown key");
    if !is_table {
        return error;
    }
    let own = OWN.map(|name| format!("`{name}`")).join(", ");
    ConfigError::new([&*key], format!("{}, {own}", error.message()))
}
