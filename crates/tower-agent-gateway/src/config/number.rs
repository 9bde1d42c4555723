//! Counts and ratios, as a configuration writes them.

use std::ops::RangeInclusive;

use toml::{Spanned, Value};

use super::error::Problem;

/// Reads the value of `key` as a whole number within `allowed`, if present.
pub(super) fn count(
    key: &str,
    value: Option<Spanned<Value>>,
    allowed: RangeInclusive<u32>,
) -> Result<Option<u32>, Problem> {
    read(key, value, |value| {
        let number = value.as_integer()?;
        let number = u32::try_from(number).ok()?;
        allowed.contains(&number).then_some(number)
    })
    .map_err(|(problem, span)| {
        let (least, most) = allowed.into_inner();
        Problem::new(format!(
            "{problem} is not a whole number from {least} to {most}"
        ))
        .at(span)
    })
}

/// Reads the value of `key` as a number from 0 to `most`, if present.
pub(super) fn ratio(
    key: &str,
    value: Option<Spanned<Value>>,
    most: f64,
) -> Result<Option<f64>, Problem> {
    read(key, value, |value| {
        let number = match value {
            Value::Integer(number) => *number as f64,
            value => value.as_float()?,
        };
        // The range contains neither NaN nor an infinity.
        (0.0..=most).contains(&number).then_some(number)
    })
    .map_err(|(problem, span)| {
        Problem::new(format!("{problem} is not a number from 0 to {most}")).at(span)
    })
}

type Wrong = (String, std::ops::Range<usize>);

fn read<T>(
    key: &str,
    value: Option<Spanned<Value>>,
    take: impl FnOnce(&Value) -> Option<T>,
) -> Result<Option<T>, Wrong> {
    let Some(value) = value else {
        return Ok(None);
    };
    let taken = take(value.get_ref());
    taken
        .map(Some)
        .ok_or_else(|| (format!("{key} = {}", value.get_ref()), value.span()))
}
