//! `[retry]`: how often what failed is tried again.

use std::time::Duration;

use toml::Spanned;

use super::error::Problem;
use super::file;
use super::limit::Limit;
use super::{Retry, Shared, number};

/// More attempts at one candidate are a loop, not a retry.
const MOST_ATTEMPTS: u32 = 100;

/// More failures are no limit: 0 says so.
const MOST_FAILURES: u32 = 1_000_000;

/// Ten repeats for each request, as the library allows.
const MOST_RATIO: f64 = 10.0;

/// What the table, or `preset = "recommended"`, stands for where it says nothing.
const ATTEMPTS: u32 = 2;
const PER_ERROR_KEY: u32 = 3;
const PER_RUN: u32 = 10;
const RATIO: f64 = 0.2;
const FLOOR: u32 = 10;
const BASE_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Without a table, and without the preset, nothing is repeated and nothing is counted.
pub(super) fn retry(table: Option<file::Retry>, recommended: bool) -> Result<Retry, Problem> {
    let repeats = table.is_some() || recommended;
    let table = table.unwrap_or_default();
    let base_span = table.base_delay.as_ref().map(Spanned::span);
    let max_delay = wait("retry.max_delay", table.max_delay, MAX_DELAY)?;

    let attempts = number::count(
        "retry.max_attempts_per_candidate",
        table.max_attempts_per_candidate,
        1..=MOST_ATTEMPTS,
    )?;
    let failures = |key, value, preset| {
        let absent = recommended.then_some(preset);
        let count = number::count(key, value, 0..=MOST_FAILURES)?.or(absent);
        Ok::<_, Problem>(count.filter(|count| *count > 0))
    };
    let retry = Retry {
        attempts: attempts.unwrap_or(if repeats { ATTEMPTS } else { 1 }),
        per_error_key: failures("retry.per_error_key", table.per_error_key, PER_ERROR_KEY)?,
        per_run: failures("retry.per_run", table.per_run, PER_RUN)?,
        shared: shared(
            number::ratio("retry.shared_ratio", table.shared_ratio, MOST_RATIO)?,
            number::count("retry.shared_floor", table.shared_floor, 0..=MOST_FAILURES)?,
            recommended,
        ),
        // Where the file has none it gives way.
        base_delay: wait(
            "retry.base_delay",
            table.base_delay,
            BASE_DELAY.min(max_delay),
        )?,
        max_delay,
        max_retry_after: wait(
            "retry.max_retry_after",
            table.max_retry_after,
            MAX_RETRY_AFTER,
        )?,
    };
    if let Some(span) = base_span.filter(|_| retry.base_delay > retry.max_delay) {
        let message = format!(
            "retry.base_delay ({:?}) is longer than retry.max_delay ({:?})",
            retry.base_delay, retry.max_delay
        );
        return Err(Problem::new(message).at(span));
    }
    Ok(retry)
}

/// One of the two brings the other along; two zeros are off, as one of them grants something.
fn shared(ratio: Option<f64>, floor: Option<u32>, recommended: bool) -> Option<Shared> {
    if ratio.is_none() && floor.is_none() && !recommended {
        return None;
    }
    let shared = Shared {
        ratio: ratio.unwrap_or(RATIO),
        floor: floor.unwrap_or(FLOOR),
    };
    (shared.ratio > 0.0 || shared.floor > 0).then_some(shared)
}

/// A time to wait: `"0s"` is none.
fn wait(key: &str, value: file::Time, absent: Duration) -> Result<Duration, Problem> {
    Ok(match Limit::read(key, value)? {
        Limit::Absent => absent,
        Limit::Off => Duration::ZERO,
        Limit::After(duration) => duration,
    })
}
