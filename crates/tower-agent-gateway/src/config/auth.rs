//! `[auth]`: the callers' keys, and the caps of each owner.

use std::{collections::BTreeMap, sync::Arc};

use tower_agent::{
    OwnerCaps,
    config::{AgentConfig, ConfigError},
};

use super::{
    owner_caps::{AuthTable, CapsTable},
    secret::{Secret, SecretSource},
    time_zone::TimeZone,
};

/// The callers' keys, and the caps of each owner.
#[derive(Debug, Default, Clone)]
pub(crate) struct Auth {
    /// The keys: at least one, and no secret twice. Several keys of one name belong to one
    /// owner, so that the old key works while a new one is rolled out.
    pub(crate) keys: Vec<Key>,
    /// The caps of each owner, over all its runs.
    pub(crate) caps: OwnerCaps,
    /// The caps of the owners that have some of their own.
    pub(crate) caps_of: BTreeMap<String, OwnerCaps>,
    /// Whether the cost of an owner is capped.
    pub(super) caps_cost: bool,
    /// Whether something is capped in a day, a week or a month.
    pub(crate) uses_calendar: bool,
    /// The place whose days, weeks and months these are.
    pub(crate) time_zone: TimeZone,
}

/// A caller's key.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    /// The name that identifies the owner of the runs, and the agent.
    pub(crate) name: Arc<str>,
    pub(crate) secret: Secret,
}

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

/// Resolves the table and reads the keys from its environment variable, or from its file.
///
/// An error about an entry gives its number and not its name. In a malformed entry, the part before
/// the colon may be a key.
///
/// `agents` are the caps that the tables `[agents.NAME]` have.
pub(super) fn auth(
    table: &AuthTable,
    agents: &BTreeMap<String, CapsTable>,
    control: Option<&Secret>,
    has_prices: bool,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Auth, ConfigError> {
    let mut errors = Vec::new();
    let of_all = table.caps();
    let caps = of_all.resolve(&of_all, &["auth"], has_prices, &mut errors);
    let of_agent = |(name, table): (&String, &CapsTable)| {
        let caps = table.resolve(&of_all, &["agents", name], has_prices, &mut errors);
        (name.clone(), caps)
    };
    let caps_of = agents.iter().map(of_agent).collect();
    let caps_cost = of_all.caps_cost() || agents.values().any(CapsTable::caps_cost);
    let uses_calendar = of_all.uses_calendar() || agents.values().any(CapsTable::uses_calendar);
    let time_zone = match table.timezone.as_deref().map(TimeZone::named) {
        None => TimeZone::default(),
        Some(Ok(_)) if !uses_calendar => {
            let message = "has no effect: nothing is capped in a day, a week or a month";
            errors.push(ConfigError::new(["auth", "timezone"], message));
            TimeZone::default()
        }
        Some(Ok(zone)) => zone,
        Some(Err(message)) => {
            errors.push(ConfigError::new(["auth", "timezone"], message));
            TimeZone::default()
        }
    };
    let mut keys: Vec<Key> = Vec::new();
    let source = SecretSource::of(
        "auth",
        ("keys_env", table.keys_env.as_ref()),
        ("keys_file", table.keys_file.as_ref()),
    );
    let source = source.and_then(|source| {
        let message = "missing key `keys_env` or `keys_file`";
        source.ok_or_else(|| ConfigError::new(["auth"], message))
    });
    let read = source.and_then(|source| Ok((source, source.read(env)?)));
    match read {
        Ok((source, value)) => {
            for (place, entry) in entries(&value, source.is_file()) {
                match key(entry, &keys, control) {
                    Ok(key) => keys.push(key),
                    Err(why) => errors.push(source.wrong(&format!("has a bad {place}: {why}"))),
                }
            }
            if keys.is_empty() && errors.is_empty() {
                errors.push(source.wrong("has no entry NAME:KEY"));
            }
        }
        Err(error) => errors.push(error),
    }
    let auth = Auth {
        keys,
        caps,
        caps_of,
        caps_cost,
        uses_calendar,
        time_zone,
    };
    ConfigError::join(errors).map_or(Ok(auth), Err)
}

/// The entries, each with its place. A file may have a line break behind each, and lines for people.
fn entries(value: &str, is_file: bool) -> Vec<(String, &str)> {
    if !is_file {
        let entries = value.split(',').map(str::trim);
        let numbered = (1..).zip(entries);
        return numbered
            .map(|(number, entry)| (format!("entry {number}"), entry))
            .collect();
    }
    let lines = (1..).zip(value.lines().map(str::trim));
    let lines = lines.filter(|(_, line)| !line.starts_with('#'));
    let entries = lines.flat_map(|(number, line)| {
        let entries = line.split(',').map(str::trim);
        let entries = entries.filter(|entry| !entry.is_empty());
        entries.map(move |entry| (format!("entry in line {number}"), entry))
    });
    entries.collect()
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
