//! `[replicas]`: the store by which several gateways share their runs.

use std::{fmt, sync::Arc, time::Duration};

use serde::Deserialize;
use tower_agent::{
    config::{ConfigError, Time},
    layers::run_store::RunStoreLayer,
    registry::SharedSecret,
};
use tower_agent_redis::{ConnectError, ConnectErrorKind, RedisOptions, RedisRunStore};

use super::{
    health_gate::above_zero,
    secret::{variable_of, wrong},
};

/// How long a request waits for the store, unless the file says otherwise.
const TIMEOUT: Duration = Duration::from_millis(50);

const URL: [&str; 2] = ["replicas", "url_env"];

const SECRET: [&str; 2] = ["replicas", "secret_env"];

/// The store that several gateways share, and what a request does without it.
#[derive(Clone)]
pub(crate) struct Replicas {
    /// Where the store is; it may hold a password.
    url: String,
    secret: SharedSecret,
    prefix: Option<String>,
    on_loss: OnLoss,
    /// How long a request waits for the store.
    timeout: Duration,
    /// The variables of the URL and of the secret, for errors.
    variables: [String; 2],
}

/// What becomes of a new run under a cap while the store is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnLoss {
    /// The caps hold for this gateway alone.
    #[default]
    Local,
    /// The run is refused.
    Refuse,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct ReplicasTable {
    url_env: String,
    secret_env: String,
    prefix: Option<String>,
    #[serde(default)]
    on_loss: OnLoss,
    timeout: Option<Time>,
}

/// Resolves the table, and reads the URL and the secret from their variables. Nothing connects.
pub(super) fn replicas(
    table: ReplicasTable,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Replicas, ConfigError> {
    let ReplicasTable {
        url_env,
        secret_env,
        prefix,
        on_loss,
        timeout,
    } = table;
    let mut errors = Vec::new();
    let mut note = |error| errors.push(error);
    let url = variable_of(&URL, &url_env, &env)
        .map_err(&mut note)
        .unwrap_or_default();
    let secret = variable_of(&SECRET, &secret_env, &env).and_then(|value| {
        SharedSecret::new(value.as_bytes())
            .map_err(|error| wrong(&SECRET, &secret_env, &format!("cannot be used: {error}")))
    });
    let secret = secret.map_err(&mut note).ok();
    let timeout = above_zero(["replicas", "timeout"], timeout);
    let timeout = timeout.map_err(&mut note).unwrap_or_default();
    let Some(secret) = secret.filter(|_| !url.is_empty()) else {
        return Err(joined(errors));
    };
    let replicas = Replicas {
        url,
        secret,
        prefix,
        on_loss,
        timeout: timeout.unwrap_or(TIMEOUT),
        variables: [url_env, secret_env],
    };
    if let Err(error) = RedisRunStore::check(&replicas.url, &replicas.options()) {
        errors.push(replicas.error_of(&error));
    }
    match errors.is_empty() {
        true => Ok(replicas),
        false => Err(joined(errors)),
    }
}

/// The errors as one; there is at least one.
fn joined(errors: Vec<ConfigError>) -> ConfigError {
    let none = || ConfigError::new(["replicas"], "cannot be used");
    ConfigError::join(errors).unwrap_or_else(none)
}

impl Replicas {
    /// Connects to the store, and makes the secret that of the process.
    ///
    /// # Errors
    ///
    /// The server cannot be used, or cannot be reached and new runs are refused then; other replicas
    /// have another secret, or this process has made an owner before.
    pub(crate) async fn connect(&self) -> Result<Arc<RedisRunStore>, ConfigError> {
        let store = RedisRunStore::connect(&self.url, &self.secret, self.options()).await;
        store.map_err(|error| self.error_of(&error))
    }

    /// The layer that asks the store, with the wait of a request and what it does without an answer.
    pub(crate) fn layer(&self, layer: RunStoreLayer) -> RunStoreLayer {
        let layer = layer.wait(self.timeout);
        match self.on_loss {
            OnLoss::Local => layer,
            OnLoss::Refuse => layer.refuse_unanswered(),
        }
    }

    fn options(&self) -> RedisOptions {
        let options = match self.on_loss {
            OnLoss::Local => RedisOptions::new().may_be_lost(),
            OnLoss::Refuse => RedisOptions::new(),
        };
        match &self.prefix {
            Some(prefix) => options.prefix(prefix),
            None => options,
        }
    }

    /// The error at the key that caused it.
    fn error_of(&self, error: &ConnectError) -> ConfigError {
        let [url, secret] = &self.variables;
        let of = |key: &[&str], variable: &str| {
            let why = format!("is of no use: {error}");
            wrong(key, variable, &why)
        };
        match error.kind() {
            ConnectErrorKind::Option => ConfigError::new(["replicas", "prefix"], error.to_string()),
            ConnectErrorKind::Secret => of(&SECRET, secret),
            _ => of(&URL, url),
        }
    }
}

impl PartialEq for Replicas {
    fn eq(&self, other: &Self) -> bool {
        let of = |it: &Self| (it.secret.fingerprint(), it.on_loss, it.timeout);
        (&self.url, &self.prefix) == (&other.url, &other.prefix) && of(self) == of(other)
    }
}

impl Eq for Replicas {}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas")
            .field("url", &"[hidden]")
            .field("prefix", &self.prefix)
            .field("on_loss", &self.on_loss)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
