//! The values of absent keys, without a preset and with it.

use std::time::Duration;

use super::{
    tables::{RetryTable, RunTable},
    values::{BoundedCount, BoundedNumber, Span},
};

pub(super) const HEARTBEAT: Span = secs(10);
pub(super) const DRAIN_LIMIT: Span = secs(30);
pub(super) const NOTIFY_AFTER: Span = secs(30);
pub(super) const KEEP_ALIVE: Span = secs(15);
pub(super) const EARLY_HEAD: Span = secs(20);
/// The window of a run, and those of an attempt, with the preset.
pub(super) const RUN_STEP_TIMEOUT: Span = secs(300);
pub(super) const STEP_TIMEOUT: Span = secs(120);
pub(super) const FIRST_TOKEN_TIMEOUT: Span = secs(240);
/// The time over which the speed of a stream with a floor is measured.
pub(super) const OVER: Span = secs(30);
pub(super) const RATIO: BoundedNumber<10> = BoundedNumber(0.2);
pub(super) const FLOOR: BoundedCount<0, 1_000_000> = BoundedCount(10);

const fn millis(millis: u64) -> Span {
    Span(Duration::from_millis(millis))
}

const fn secs(seconds: u64) -> Span {
    Span(Duration::from_secs(seconds))
}

/// The limits where the configuration sets none. Without a table of repeats and a preset, nothing is
/// repeated or counted.
pub(super) fn absent(repeats: bool, recommended: bool) -> (RunTable, RetryTable) {
    let attempts = if repeats || recommended { 2 } else { 1 };
    let mut run = RunTable::default();
    let mut retry = RetryTable {
        max_attempts_per_candidate: Some(BoundedCount(attempts)),
        base_delay: Some(millis(500)),
        max_delay: Some(secs(8)),
        max_retry_after: Some(secs(60)),
        ..RetryTable::default()
    };
    if recommended {
        run.step_timeout = Some(RUN_STEP_TIMEOUT);
        // Users ask for five minutes to an hour. The preset has the longest of these, so that every
        // run has an end.
        run.max_turn_time = Some(secs(3600));
        run.max_turns = Some(BoundedCount(30));
        run.idle_breaker = Some(BoundedCount(5));
        retry.per_error_key = Some(BoundedCount(3));
        retry.per_run = Some(BoundedCount(10));
        retry.shared_ratio = Some(RATIO);
        retry.shared_floor = Some(FLOOR);
    }
    (run, retry)
}
