//! Secrets that a configuration reads from the environment, or from files of their own.

use std::{fmt, path::Path};

use http::HeaderValue;
use subtle::{Choice, ConstantTimeEq};
use tower_agent::config::ConfigError;

use super::file;

/// A value that is never printed, and is compared in a time independent of the value.
#[derive(Clone)]
pub(crate) struct Secret(String);

/// Where a secret is: in a variable of the environment, or in a file that each reload reads again.
#[derive(Clone, Copy)]
pub(super) struct SecretSource<'a> {
    /// The table of the configuration.
    table: &'static str,
    /// The key of the table that names the variable or the file.
    key: &'static str,
    place: SecretPlace<'a>,
}

#[derive(Clone, Copy)]
enum SecretPlace<'a> {
    Variable(&'a str),
    File(&'a str),
}

impl<'a> SecretSource<'a> {
    /// The source that a table names under one of two keys; `None` if it names none.
    ///
    /// # Errors
    ///
    /// If the table names both, or a path that is not absolute.
    pub(super) fn of(
        table: &'static str,
        (of_variable, variable): (&'static str, Option<&'a String>),
        (of_file, path): (&'static str, Option<&'a String>),
    ) -> Result<Option<Self>, ConfigError> {
        let (key, place) = match (variable, path) {
            (None, None) => return Ok(None),
            (Some(variable), None) => (of_variable, SecretPlace::Variable(variable)),
            (None, Some(path)) if Path::new(path).is_absolute() => {
                (of_file, SecretPlace::File(path))
            }
            (None, Some(path)) => {
                let message = format!("{path} is not an absolute path");
                return Err(ConfigError::new([table, of_file], message));
            }
            (Some(_), Some(_)) => {
                let message = format!("`{of_variable}` is there, too: keep one of them");
                return Err(ConfigError::new([table, of_file], message));
            }
        };
        Ok(Some(Self { table, key, place }))
    }

    /// Reads the value, which is not empty. Of a file it is the text without the line breaks at its end.
    ///
    /// # Errors
    ///
    /// If the variable is not set, the file cannot be read, or the value is empty.
    pub(super) fn read(self, env: impl Fn(&str) -> Option<String>) -> Result<String, ConfigError> {
        let path = match self.place {
            SecretPlace::Variable(variable) => {
                return variable_of(&[self.table, self.key], variable, env);
            }
            SecretPlace::File(path) => path,
        };
        secret_file(Path::new(path)).map_err(|why| self.wrong(&why))
    }

    /// Whether the source is a file.
    pub(super) const fn is_file(self) -> bool {
        matches!(self.place, SecretPlace::File(_))
    }

    /// Reads a secret that a header must be able to carry whole.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), and for a value that no header may carry, or with spaces around it.
    pub(super) fn secret(
        self,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Secret, ConfigError> {
        let value = self.read(env)?;
        if value.trim() != value {
            return Err(self.wrong("begins or ends with a space"));
        }
        Secret::new(value).ok_or_else(|| {
            self.wrong("holds characters that no header may carry, such as a line break")
        })
    }

    /// The error that the variable or the file has this fault.
    pub(super) fn wrong(self, why: &str) -> ConfigError {
        match self.place {
            SecretPlace::Variable(variable) => wrong(&[self.table, self.key], variable, why),
            SecretPlace::File(path) => {
                ConfigError::new([self.table, self.key], format!("the file {path} {why}"))
            }
        }
    }
}

/// Reads a file that holds a secret: its text without the line breaks at its end, which is not empty.
///
/// # Errors
///
/// A message that says why the file cannot be used.
pub(crate) fn secret_file(path: &Path) -> Result<String, String> {
    let text = file::read(path)?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err("is empty".to_owned()),
        value => Ok(value.to_owned()),
    }
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
    ConfigError::of_variable(key.iter().copied(), variable, why)
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
