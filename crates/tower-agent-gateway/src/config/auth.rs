//! `[auth]`: the callers' keys, and the caps of each owner.

use std::sync::Arc;

use serde::Deserialize;
use tower_agent::{
    OwnerCaps, TokenCaps,
    config::{AgentConfig, Amount, BoundedCount, ConfigError},
};

use super::secret::{Secret, variable_of, wrong};

/// The callers' keys, and the caps of each owner.
#[derive(Debug, Clone)]
pub(crate) struct Auth {
    /// The keys: at least one, and no secret twice. Several keys of one name belong to one
    /// owner, so that the old key works while a new one is rolled out.
    pub(crate) keys: Vec<Key>,
    /// The caps of each owner, over all its runs.
    pub(crate) caps: OwnerCaps,
}

/// A caller's key.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    /// The name that identifies the owner of the runs, and the agent.
    pub(crate) name: Arc<str>,
    pub(crate) secret: Secret,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct AuthTable {
    keys_env: String,
    max_open_runs: Option<BoundedCount<0, 1_000_000>>,
    turns_per_hour: Option<BoundedCount<0, 1_000_000>>,
    output_tokens_per_hour: Option<BoundedCount<0, { u32::MAX }>>,
    total_tokens_per_hour: Option<BoundedCount<0, { u32::MAX }>>,
    cost_per_hour: Option<Amount>,
    count_cached_input: Option<bool>,
}

/// Reads the caps of an owner; a cap of zero is off.
fn caps(table: &AuthTable, has_prices: bool, errors: &mut Vec<ConfigError>) -> OwnerCaps {
    let cost = table.cost_per_hour.and_then(Amount::limit);
    if cost.is_some() && !has_prices {
        let message = "is of no use: no candidate has a price";
        errors.push(ConfigError::new(["auth", "cost_per_hour"], message));
    }
    let total = table.total_tokens_per_hour.and_then(BoundedCount::limit);
    if table.count_cached_input == Some(true) && total.is_none() {
        let message = "is of no use without total_tokens_per_hour";
        errors.push(ConfigError::new(["auth", "count_cached_input"], message));
    }
    let tokens = TokenCaps::new()
        .max_output_tokens(table.output_tokens_per_hour.and_then(BoundedCount::limit))
        .max_total_tokens(total)
        .max_cost(cost)
        .count_cached_input(table.count_cached_input == Some(true));
    let caps = OwnerCaps::new().tokens_per_hour(tokens);
    let caps = match table.max_open_runs.and_then(BoundedCount::limit) {
        Some(runs) => caps.max_open_runs(runs),
        None => caps,
    };
    match table.turns_per_hour.and_then(BoundedCount::limit) {
        Some(turns) => caps.turns_per_hour(turns),
        None => caps,
    }
}

const KEYS: [&str; 2] = ["auth", "keys_env"];

/// Checks that each agent has a key.
///
/// A table without a key of its name is an error: it could never apply, so the name is mistyped.
pub(super) fn check_agents(agents: &AgentConfig, auth: Option<&Auth>) -> Result<(), ConfigError> {
    let known =
        |name: &str| auth.is_some_and(|auth| auth.keys.iter().any(|key| &*key.name == name));
    let message = match auth {
        Some(_) => "is nobody: no key of [auth] has this name",
        None => "is nobody: without [auth] no caller has a name",
    };
    let unknown = agents.agents().filter(|name| !known(name));
    let errors = unknown.map(|nobody| ConfigError::new(["agents", nobody], message));
    ConfigError::join(errors).map_or(Ok(()), Err)
}

/// Resolves the table and reads the keys from its environment variable.
///
/// An error about an entry gives its number and not its name. In a malformed entry, the part before
/// the colon may be a key.
pub(super) fn auth(
    table: AuthTable,
    control: Option<&Secret>,
    has_prices: bool,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Auth, ConfigError> {
    let variable = &table.keys_env;
    let mut errors = Vec::new();
    let caps = caps(&table, has_prices, &mut errors);
    let mut keys: Vec<Key> = Vec::new();
    let value = variable_of(&KEYS, variable, env);
    let value = value.map_err(|error| errors.push(error)).ok();
    let entries = value.iter().flat_map(|value| value.split(','));
    for (number, entry) in (1..).zip(entries) {
        match key(entry.trim(), &keys, control) {
            Ok(key) => keys.push(key),
            Err(why) => {
                let why = format!("has a bad entry {number}: {why}");
                errors.push(wrong(&KEYS, variable, &why));
            }
        }
    }
    ConfigError::join(errors).map_or(Ok(Auth { keys, caps }), Err)
}

/// Reads one entry, behind the keys of the earlier ones.
fn key(entry: &str, earlier: &[Key], control: Option<&Secret>) -> Result<Key, &'static str> {
    let (name, secret) = entry.split_once(':').ok_or("it is not NAME:KEY")?;
    if name.is_empty() {
        return Err("its name is empty");
    }
    if name == "defaults" {
        return Err("its name is `defaults`: [agents.defaults] means all agents");
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !name.bytes().all(is_plain) {
        return Err("its name is not of letters, digits, `.`, `_` and `-`");
    }
    if secret.is_empty() {
        return Err("its key is empty");
    }
    if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("its key holds a space or a character beyond ASCII");
    }
    let secret = Secret::new(secret.to_owned()).ok_or("no header may carry its key")?;
    if earlier.iter().any(|known| known.secret == secret) {
        return Err("its key is that of an earlier one");
    }
    if control == Some(&secret) {
        return Err("its key is the control token, which is the operator's alone");
    }
    Ok(Key {
        name: name.into(),
        secret,
    })
}
