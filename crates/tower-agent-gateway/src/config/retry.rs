//! `[retry]`: how often a failed attempt is repeated.

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
    /// The budget that all runs share.
    pub(crate) shared: Option<SharedBudget>,
    /// The wait before the first repeat, before jitter.
    pub(crate) base_delay: Duration,
    /// The longest wait between attempts; at least `base_delay`.
    pub(crate) max_delay: Duration,
    /// The longest wait that the gateway accepts from an upstream's `retry-after`.
    pub(crate) max_retry_after: Duration,
}

/// The repeats that all runs together may make at one candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SharedBudget {
    /// Repeats per first attempt.
    pub(crate) ratio: f64,
    /// Repeats per second in any case.
    pub(crate) floor: u32,
}

/// The most attempts at one candidate; more are a loop, not a retry.
const MOST_ATTEMPTS: u32 = 100;

/// The largest limit of failures, and the largest floor; 0 switches either off.
const MOST_FAILURES: u32 = 1_000_000;

/// The largest ratio: ten repeats for each request, as the library allows.
const MOST_RATIO: f64 = 10.0;

/// The defaults of the table's keys, and the values of `preset = "recommended"`.
const ATTEMPTS: u32 = 2;
const PER_ERROR_KEY: u32 = 3;
const PER_RUN: u32 = 10;
const RATIO: f64 = 0.2;
const FLOOR: u32 = 10;
const BASE_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The values of absent keys. Without a table and a preset, nothing is repeated or counted.
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

/// Resolves `table`; `absent` fills in what it leaves out. Errors name keys under `place`.
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
        // A default base delay yields to a shorter maximum; only one in the file is an error.
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

/// Resolves the shared budget; either key alone gives the other its default.
///
/// The budget is off only if both are zero, because either of them alone grants repeats.
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

/// Reads a wait; `"0s"` means none, not an absent limit.
fn wait(key: &str, value: file::Time, absent: Duration) -> Result<Duration, Problem> {
    Ok(match Limit::read(key, value)? {
        Limit::Absent => absent,
        Limit::Off => Duration::ZERO,
        Limit::After(duration) => duration,
    })
}
