//! `[replicas]`: the store by which several gateways share their runs.

use std::{fmt, fs, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use tower_agent::{
    config::{ConfigError, Span},
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

const NAME: [&str; 2] = ["replicas", "name_env"];

/// The most characters of a gateway's name.
const LONGEST_NAME: usize = 64;

/// The store that several gateways share, and what a request does without it.
#[derive(Clone)]
pub(crate) struct Replicas {
    /// Where the store is; it may hold a password.
    url: String,
    secret: SharedSecret,
    /// What this gateway is called among the others.
    name: Option<String>,
    prefix: Option<String>,
    on_loss: OnLoss,
    /// How long a request waits for the store.
    timeout: Duration,
    /// The variables of the URL and of the secret, for errors.
    variables: [String; 2],
}

/// What becomes of a new run under a cap while the store is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum OnLoss {
    /// The caps hold for this gateway alone.
    #[default]
    Local,
    /// The run is refused.
    Refuse,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct ReplicasTable {
    /// The environment variable that holds where the store is.
    url_env: String,
    /// The environment variable that holds the secret of all gateways.
    secret_env: String,
    /// The environment variable that holds the name of this gateway. HOST-PORT without it.
    name_env: Option<String>,
    /// The beginning of all keys in the store. "ta1" by default.
    prefix: Option<String>,
    /// What becomes of a new run under a cap while the store is lost. "local" by default.
    #[serde(default)]
    on_loss: OnLoss,
    /// The longest that a request waits for the store; above zero. "50ms" by default.
    timeout: Option<Span>,
}

/// Resolves the table, and reads the URL and the secret from their variables. Nothing connects.
pub(super) fn replicas(
    table: ReplicasTable,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Replicas, ConfigError> {
    let ReplicasTable {
        url_env,
        secret_env,
        name_env,
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
    let name = name_env.map(|variable| {
        let name = variable_of(&NAME, &variable, &env)?;
        let is_name = name.len() <= LONGEST_NAME && name.bytes().all(is_part_of_name);
        let unusable = || {
            let why = format!("is not a name of 1 to {LONGEST_NAME} letters, digits and ._-");
            wrong(&NAME, &variable, &why)
        };
        is_name.then_some(name).ok_or_else(unusable)
    });
    let name = name.transpose().map_err(&mut note).unwrap_or_default();
    let timeout = above_zero(["replicas", "timeout"], timeout);
    let timeout = timeout.map_err(&mut note).unwrap_or_default();
    let Some(secret) = secret.filter(|_| !url.is_empty()) else {
        return Err(joined(errors));
    };
    let replicas = Replicas {
        url,
        secret,
        name,
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

/// What a gateway is called if its file does not say it: the name of its host, and the port.
fn default_name(port: Option<u16>) -> String {
    let variable = || std::env::var("HOSTNAME").ok();
    let file = || fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let known = |name: &String| !name.trim().is_empty();
    let host = variable().filter(known).or_else(|| file().filter(known));
    let host = host.unwrap_or_else(|| "gateway".into());
    name_of_host(host.trim(), port)
}

fn name_of_host(host: &str, port: Option<u16>) -> String {
    let port = port.map_or_else(String::new, |port| format!("-{port}"));
    let host = host.bytes().take(LONGEST_NAME - port.len());
    let host = host.map(|byte| if is_part_of_name(byte) { byte } else { b'-' });
    host.map(char::from).chain(port.chars()).collect()
}

fn is_part_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-".contains(&byte)
}

/// The errors as one; there is at least one.
fn joined(errors: Vec<ConfigError>) -> ConfigError {
    let none = || ConfigError::new(["replicas"], "cannot be used");
    ConfigError::join(errors).unwrap_or_else(none)
}

impl Replicas {
    /// Connects to the store, and makes the secret that of the process. `port` is the one at which the
    /// gateway listens, if that is known: for its name.
    ///
    /// # Errors
    ///
    /// The server cannot be used, or cannot be reached and new runs are refused then; other replicas
    /// have another secret, or this process has made an owner before.
    pub(crate) async fn connect(
        &self,
        port: Option<u16>,
    ) -> Result<Arc<RedisRunStore>, ConfigError> {
        let name = self.name.clone();
        let name = name.unwrap_or_else(|| default_name(port));
        let options = self.options().replica(name);
        let store = RedisRunStore::connect(&self.url, &self.secret, options).await;
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

    /// Identifies the store and its secret: gateways that share it have the same.
    pub(crate) fn fingerprint(&self) -> u128 {
        self.secret.fingerprint()
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
            let why = format!("cannot be used: {error}");
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
        let texts = |it: &Self| (it.url.clone(), it.prefix.clone(), it.name.clone());
        texts(self) == texts(other) && of(self) == of(other)
    }
}

impl Eq for Replicas {}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas")
            .field("url", &"[hidden]")
            .field("name", &self.name)
            .field("prefix", &self.prefix)
            .field("on_loss", &self.on_loss)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_called_by_its_host_and_its_port() {
        assert_eq!(name_of_host("web-1", None), "web-1");
        assert_eq!(name_of_host("web-1", Some(8787)), "web-1-8787");
        assert_eq!(name_of_host("a b\u{e9}", Some(1)), "a-b---1");
        let long = name_of_host(&"h".repeat(300), Some(65535));
        assert_eq!(long, format!("{}-65535", "h".repeat(58)));
        assert!(RedisRunStore::check("redis://h", &RedisOptions::new().replica(long)).is_ok());
    }
}
