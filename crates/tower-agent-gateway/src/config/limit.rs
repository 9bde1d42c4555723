//! Time limits, as a configuration writes them.

use std::time::Duration;

use humantime::DurationError;
use toml::{Spanned, Value};

use super::error::Problem;

/// Longer limits are cut to this: far beyond any run, and safe to add to an instant.
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// A time limit in a file: absent, off, or a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Absent,
    Off,
    After(Duration),
}

/// Resolves `observe` of the table `place`; only with a time to observe is it of use.
pub(super) fn observe(
    value: Option<Spanned<bool>>,
    place: &str,
    times: &[Option<Duration>],
    absent: bool,
) -> Result<bool, Problem> {
    let Some(value) = value else {
        return Ok(absent);
    };
    if *value.get_ref() && times.iter().all(Option::is_none) {
        let message = format!("{place}.observe is of no use without a limit on time beside it");
        return Err(Problem::new(message).at(value.span()));
    }
    Ok(value.into_inner())
}

impl Limit {
    /// Reads the value of `key`, which must be longer than zero.
    pub(super) fn above_zero(
        key: &str,
        value: Option<Spanned<Value>>,
    ) -> Result<Option<Duration>, Problem> {
        let span = value.as_ref().map(Spanned::span).unwrap_or_default();
        match Self::read(key, value)? {
            Self::Off => Err(Problem::new(format!("{key} must be longer than zero")).at(span)),
            limit => Ok(limit.or(None)),
        }
    }

    /// Reads the value of `key`: a string such as `"1500ms"`, `"60s"`, `"5m"`, or `"0s"` for off.
    pub(super) fn read(key: &str, value: Option<Spanned<Value>>) -> Result<Self, Problem> {
        let Some(value) = value else {
            return Ok(Self::Absent);
        };
        let span = value.span();
        let value = value.into_inner();
        let wrong = |why: &str| Problem::new(format!("{key} = {value} {why}")).at(span.clone());

        let Value::String(text) = &value else {
            return Err(wrong(
                "is not a duration: write a string with a unit, such as \"60s\"",
            ));
        };
        if text.trim_start().starts_with('-') {
            return Err(wrong("is negative: write \"0s\" to switch the limit off"));
        }
        match humantime::parse_duration(text) {
            Ok(Duration::ZERO) => Ok(Self::Off),
            Ok(duration) => Ok(Self::After(duration.min(LONGEST))),
            // Only without a fraction: humantime reports the same error for less than a
            // nanosecond.
            Err(DurationError::NumberOverflow) if !text.contains('.') => Ok(Self::After(LONGEST)),
            Err(error) => Err(wrong(&format!(
                "is not a duration such as \"60s\": {error}"
            ))),
        }
    }

    /// The limit, or `preset` if the file has none.
    pub(super) fn or(self, preset: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Absent => preset,
            Self::Off => None,
            Self::After(duration) => Some(duration),
        }
    }
}
