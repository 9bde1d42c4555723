//! `[auth]`: whose calls are served.

use std::sync::Arc;

use super::error::Problem;
use super::secret::{Secret, variable_of, wrong};
use super::{file, number};

/// Who may call.
#[derive(Debug, Clone)]
pub(crate) struct Auth {
    /// At least one, and no two alike. Several of one name are one owner's: while a key is
    /// replaced, both hold.
    pub(crate) keys: Vec<Key>,
    /// How many runs each owner may have open.
    pub(crate) max_open_runs: Option<u32>,
    /// How many turns each owner may have in an hour, whatever runs they are of.
    pub(crate) turns_per_hour: Option<u32>,
}

/// A caller's key.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    /// The owner of the runs, and the agent, whom it stands for.
    pub(crate) name: Arc<str>,
    pub(crate) secret: Secret,
}

/// More is no cap: 0 says so.
const MOST: u32 = 1_000_000;

/// Reads the keys. What is wrong with one is told by its number: what stands where a name should
/// may be a key.
pub(super) fn auth(
    table: file::AuthTable,
    control: Option<&Secret>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Auth, Problem> {
    let cap = |key, value| {
        let cap = number::count(key, value, 0..=MOST)?;
        Ok::<_, Problem>(cap.filter(|cap| *cap > 0))
    };
    let max_open_runs = cap("auth.max_open_runs", table.max_open_runs)?;
    let turns_per_hour = cap("auth.turns_per_hour", table.turns_per_hour)?;
    let variable = &table.keys_env;
    let value = variable_of("[auth]", variable, env)?;
    let mut keys: Vec<Key> = Vec::new();
    for (number, entry) in (1..).zip(value.split(',')) {
        let wrong = |why: &str| {
            let why = format!("has a bad entry {number}: {why}");
            wrong("[auth]", variable, &why)
        };
        let (name, secret) = entry
            .trim()
            .split_once(':')
            .ok_or_else(|| wrong("it is not NAME:KEY"))?;
        if name.is_empty() {
            return Err(wrong("its name is empty"));
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
        max_open_runs,
        turns_per_hour,
    })
}
