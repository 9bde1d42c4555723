//! `[retry]`: how often what failed is tried again.

use std::time::Duration;

use toml::Spanned;

use super::error::Problem;
use super::file;
use super::limit::Limit;
use super::number;

/// `[retry]`; `None` is off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Retry {
    /// How often one candidate is tried within a call, at least once.
    pub(crate) attempts: u32,
    /// How often a run may repeat the same failure.
    pub(crate) per_error_key: Option<u32>,
    /// How many failures of any kind a run may have.
    pub(crate) per_run: Option<u32>,
    /// How many failures in a row a run may have.
    pub(crate) consecutive_errors: Option<u32>,
    /// What all runs together may repeat.
    pub(crate) shared: Option<SharedBudget>,
    /// The wait before the first repeat, before jitter.
    pub(crate) base_delay: Duration,
    /// What that grows to, and never shorter than it.
    pub(crate) max_delay: Duration,
    /// The longest wait that an upstream may ask for.
    pub(crate) max_retry_after: Duration,
}

/// What all runs together may repeat, per candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SharedBudget {
    /// Repeats per first attempt.
    pub(crate) ratio: f64,
    /// Repeats per second in any case.
    pub(crate) floor: u32,
}

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
pub(super) fn absent(table: bool, recommended: bool) -> Retry {
    Retry {
        attempts: if table || recommended { ATTEMPTS } else { 1 },
        per_error_key: recommended.then_some(PER_ERROR_KEY),
        per_run: recommended.then_some(PER_RUN),
        consecutive_errors: None,
        shared: recommended.then_some(SharedBudget {
            ratio: RATIO,
            floor: FLOOR,
        }),
        base_delay: BASE_DELAY,
        max_delay: MAX_DELAY,
        max_retry_after: MAX_RETRY_AFTER,
    }
}

/// What `table`, whose keys stand in `place`, says; and where it says nothing, `absent`.
pub(super) fn retry(table: file::RetryTable, place: &str, absent: Retry) -> Result<Retry, Problem> {
    let key = |name: &str| format!("{place}.{name}");
    let base_span = table.base_delay.as_ref().map(Spanned::span);
    let max_delay = wait(&key("max_delay"), table.max_delay, absent.max_delay)?;

    let attempts = number::count(
        &key("max_attempts_per_candidate"),
        table.max_attempts_per_candidate,
        1..=MOST_ATTEMPTS,
    )?;
    let failures = |name, value, absent| {
        let count = number::count(&key(name), value, 0..=MOST_FAILURES)?;
        Ok::<_, Problem>(count.or(absent).filter(|count| *count > 0))
    };
    let retry = Retry {
        attempts: attempts.unwrap_or(absent.attempts),
        per_error_key: failures("per_error_key", table.per_error_key, absent.per_error_key)?,
        per_run: failures("per_run", table.per_run, absent.per_run)?,
        consecutive_errors: failures(
            "consecutive_errors",
            table.consecutive_errors,
            absent.consecutive_errors,
        )?,
        shared: shared(
            number::ratio(&key("shared_ratio"), table.shared_ratio, MOST_RATIO)?,
            number::count(&key("shared_floor"), table.shared_floor, 0..=MOST_FAILURES)?,
            absent.shared,
        ),
        // Where the file has none it gives way.
        base_delay: wait(
            &key("base_delay"),
            table.base_delay,
            absent.base_delay.min(max_delay),
        )?,
        max_delay,
        max_retry_after: wait(
            &key("max_retry_after"),
            table.max_retry_after,
            absent.max_retry_after,
        )?,
    };
    if let Some(span) = base_span.filter(|_| retry.base_delay > retry.max_delay) {
        let message = format!(
            "{place}.base_delay ({:?}) is longer than {place}.max_delay ({:?})",
            retry.base_delay, retry.max_delay
        );
        return Err(Problem::new(message).at(span));
    }
    Ok(retry)
}

/// One of the two brings the other along; two zeros are off, as one of them grants something.
fn shared(
    ratio: Option<f64>,
    floor: Option<u32>,
    absent: Option<SharedBudget>,
) -> Option<SharedBudget> {
    if ratio.is_none() && floor.is_none() {
        return absent;
    }
    let shared = SharedBudget {
        ratio: ratio.or(absent.map(|it| it.ratio)).unwrap_or(RATIO),
        floor: floor.or(absent.map(|it| it.floor)).unwrap_or(FLOOR),
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
