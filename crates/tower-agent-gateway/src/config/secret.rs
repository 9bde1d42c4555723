//! Secrets that a configuration reads from the environment.

use std::fmt;
use std::hint;

use http::HeaderValue;
use toml::Spanned;

use super::error::Problem;

/// A value that is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

/// Reads `variable` for `owner`; the value must be a valid header value.
pub(super) fn secret(
    owner: &str,
    variable: &Spanned<String>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<Secret, Problem> {
    let value = variable_of(owner, variable, env)?;
    Secret::new(value).ok_or_else(|| {
        wrong(
            owner,
            variable,
            "holds characters that no header may carry, such as a line break",
        )
    })
}

/// Reads `variable` for `owner`, whatever it holds.
pub(super) fn variable_of(
    owner: &str,
    variable: &Spanned<String>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<String, Problem> {
    match env(variable.get_ref()) {
        None => Err(wrong(owner, variable, "is not set")),
        Some(value) if value.is_empty() => Err(wrong(owner, variable, "is empty")),
        Some(value) => Ok(value),
    }
}

pub(super) fn wrong(owner: &str, variable: &Spanned<String>, why: &str) -> Problem {
    let name = variable.get_ref();
    let message = format!("the environment variable {name} of {owner} {why}");
    Problem::new(message).at(variable.span())
}

impl Secret {
    /// Takes a value; `None` if no header may carry it.
    pub(super) fn new(value: String) -> Option<Self> {
        HeaderValue::from_str(&value).is_ok().then_some(Self(value))
    }

    /// The value itself, to be sent and not kept.
    #[must_use]
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// Compares in a time that depends on the length of `given` alone.
    #[must_use]
    pub(crate) fn is(&self, given: &str) -> bool {
        let wanted = self.0.as_bytes().iter().cycle();
        let differing = u8::from(given.len() != self.0.len());
        let differing = given
            .bytes()
            .zip(wanted)
            // Opaque, so that the optimiser does not stop at the first difference.
            .fold(differing, |sum, (a, b)| hint::black_box(sum | (a ^ b)));
        differing == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}
