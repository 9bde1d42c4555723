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
fn caps(table: &AuthTable, has_prices: bool) -> Result<OwnerCaps, ConfigError> {
    let cost = table.cost_per_hour.and_then(Amount::limit);
    if cost.is_some() && !has_prices {
        let message = "is of no use: no candidate has a price";
        return Err(ConfigError::new(["auth", "cost_per_hour"], message));
    }
    let total = table.total_tokens_per_hour.and_then(BoundedCount::limit);
    if table.count_cached_input == Some(true) && total.is_none() {
        let message = "is of no use without total_tokens_per_hour";
        return Err(ConfigError::new(["auth", "count_cached_input"], message));
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
    Ok(match table.turns_per_hour.and_then(BoundedCount::limit) {
        Some(turns) => caps.turns_per_hour(turns),
        None => caps,
    })
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
    match agents.agents().find(|name| !known(name)) {
        Some(nobody) => Err(ConfigError::new(["agents", nobody], message)),
        None => Ok(()),
    }
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
    let value = variable_of(&KEYS, variable, env)?;
    let mut keys: Vec<Key> = Vec::new();
    for (number, entry) in (1..).zip(value.split(',')) {
        let wrong = |why: &str| {
            let why = format!("has a bad entry {number}: {why}");
            wrong(&KEYS, variable, &why)
        };
        let (name, secret) = entry
            .trim()
            .split_once(':')
            .ok_or_else(|| wrong("it is not NAME:KEY"))?;
        if name.is_empty() {
            return Err(wrong("its name is empty"));
        }
        if name == "defaults" {
            return Err(wrong(
                "its name is `defaults`: [agents.defaults] means all agents",
            ));
        }
        if !name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        {
            return Err(wrong(
                "its name is not of letters, digits, `.`, `_` and `-`",
            ));
        }
        if secret.is_empty() {
            return Err(wrong("its key is empty"));
        }
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("its key holds a space or a character beyond ASCII"));
        }
        let secret =
            Secret::new(secret.to_owned()).ok_or_else(|| wrong("no header may carry its key"))?;
        if keys.iter().any(|known| known.secret == secret) {
            return Err(wrong("its key is that of an earlier one"));
        }
        if control == Some(&secret) {
            return Err(wrong(
                "its key is the control token, which is the operator's alone",
            ));
        }
        keys.push(Key {
            name: name.into(),
            secret,
        });
    }
    Ok(Auth {
        keys,
        caps: caps(&table, has_prices)?,
    })
}
