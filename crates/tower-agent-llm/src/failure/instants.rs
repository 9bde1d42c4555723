//! Numbers and points in time, as texts state them.

use std::time::{Duration, SystemTime};

/// Numbers above this one are times of Unix, in seconds: it is in the year 2001.
const UNIX: u64 = 1_000_000_000;

/// Numbers above this one are times of Unix, in milliseconds.
const UNIX_MILLIS: u64 = 100_000_000_000;

/// Parses a point in time: Unix in seconds or milliseconds, or a date. A number too small for
/// either is a number of seconds.
pub(super) fn at(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    unix(text, now)
        .or_else(|| decimal(text, 9))
        .or_else(|| iso(text, now).map(|(time, _)| time))
}

/// Parses a number that is too large for a delay as a time of Unix.
pub(super) fn unix(text: &str, now: SystemTime) -> Option<Duration> {
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    if !whole.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    let since = match number {
        UNIX_MILLIS.. => Duration::from_millis(number),
        UNIX.. => Duration::from_secs(number),
        _ => return None,
    };
    Some(left_until(since, now))
}

fn left_until(since_epoch: Duration, now: SystemTime) -> Duration {
    let now = now.duration_since(SystemTime::UNIX_EPOCH);
    since_epoch.saturating_sub(now.unwrap_or_default())
}

/// Parses a decimal number of units of 10^`exponent` nanoseconds; rounds up to a nanosecond.
///
/// The parser reads digits, because a float would round some delays down.
pub(super) fn decimal(text: &str, exponent: usize) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let mut digits = whole.bytes().chain(fraction.bytes());
    if whole.is_empty() || !digits.all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let push = |sum: u64, digit: u8| {
        let digit = u64::from(digit - b'0');
        sum.saturating_mul(10).saturating_add(digit)
    };
    let zeros = std::iter::repeat(b'0');
    let nanos = whole
        .bytes()
        .chain(fraction.bytes().chain(zeros).take(exponent))
        .fold(0, push);
    let rest = fraction.bytes().skip(exponent).any(|digit| digit != b'0');
    Some(Duration::from_nanos(nanos.saturating_add(rest.into())))
}

/// Parses the date with which a text begins, as in `2026-06-10T08:30:00Z`: also with a space in
/// place of the `T`, without seconds, with a fraction, and with an offset. Without an offset the
/// date is in UTC. Also returns the date's length.
pub(super) fn iso(text: &str, now: SystemTime) -> Option<(Duration, usize)> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| digits.parse().ok())?
    };
    let is = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|byte| wanted.contains(byte));
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    if !is(4, b"-") || !is(7, b"-") || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let mut seconds = days_from_epoch(year, month, day) * 24 * 60 * 60;
    let mut end = 10;
    if is(10, b"T ") && is(13, b":") {
        seconds += number(11, 13)? * 60 * 60 + number(14, 16)? * 60;
        end = 16;
        if is(16, b":") {
            seconds += number(17, 19)?;
            end = 19;
        }
        if is(end, b".") {
            let digits = bytes[end + 1..].iter();
            end += 1 + digits.take_while(|byte| byte.is_ascii_digit()).count();
        }
        if is(end, b"+-") && is(end + 3, b":") {
            let offset = number(end + 1, end + 3)? * 60 * 60 + number(end + 4, end + 6)? * 60;
            seconds += if is(end, b"-") { offset } else { -offset };
            end += 6;
        }
    }
    let since = Duration::from_secs(u64::try_from(seconds).ok()?);
    Some((left_until(since, now), end))
}

/// The days from the beginning of 1970 to a date of the Gregorian calendar.
const fn days_from_epoch(year: i64, month: i64, day: i64) -> i64 {
    // The year begins in March, so that the leap day is its last.
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = of_era * 365 + of_era / 4 - of_era / 100 + of_year;
    era * 146_097 + days - 719_468
}
