//! Secrets that a configuration reads from the environment.

use std::fmt;

use http::HeaderValue;
use subtle::{Choice, ConstantTimeEq};
use tower_agent::config::ConfigError;

/// A value that is never printed, and is compared in a time independent of the value.
#[derive(Clone)]
pub(crate) struct Secret(String);

/// Reads the environment variable that `key` names; a header must be able to carry the value whole.
pub(super) fn secret(
    key: &[&str],
    variable: &str,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Secret, ConfigError> {
    let value = variable_of(key, variable, env)?;
    if value.trim() != value {
        return Err(wrong(key, variable, "begins or ends with a space"));
    }
    Secret::new(value).ok_or_else(|| {
        let why = "holds characters that no header may carry, such as a line break";
        wrong(key, variable, why)
    })
}

/// Reads the environment variable that `key` names; the value must not be empty.
pub(super) fn variable_of(
    key: &[&str],
    variable: &str,
    env: impl Fn(&str) -> Option<String>,
) -> Result<String, ConfigError> {
    match env(variable) {
        None => Err(wrong(key, variable, "is not set")),
        Some(value) if value.is_empty() => Err(wrong(key, variable, "is empty")),
        Some(value) => Ok(value),
    }
}

pub(super) fn wrong(key: &[&str], variable: &str, why: &str) -> ConfigError {
    let message = format!("the environment variable {variable} {why}");
    ConfigError::new(key.iter().copied(), message)
}

impl Secret {
    /// Takes a value; `None` if no header may carry it.
    pub(super) fn new(value: String) -> Option<Self> {
        HeaderValue::from_str(&value).is_ok().then_some(Self(value))
    }

    /// Compares in a time that depends on the length of `given` alone.
    ///
    /// The bytes are compared one by one, because the comparison of two slices returns early if
    /// their lengths differ, and so reveals the length of the secret.
    #[must_use]
    pub(crate) fn is(&self, given: &str) -> bool {
        let wanted = self.0.as_bytes().iter().cycle();
        let same_length = given.len().ct_eq(&self.0.len());
        let pairs = given.as_bytes().iter().zip(wanted);
        let same = pairs.fold(same_length, |same: Choice, (a, b)| same & a.ct_eq(b));
        same.into()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.is(&other.0)
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}
