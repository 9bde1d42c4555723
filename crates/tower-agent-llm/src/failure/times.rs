//! The times that a failed answer states: delays before the next try, and times at which a limit is
//! renewed.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::{
    prose,
    retry_after::{self, capped},
};

/// Times of one kind: one that only the upstream can have written, and one from a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stated {
    pub(super) structured: Option<Duration>,
    pub(super) text: Option<Duration>,
}

/// What an answer says about when to come back. All durations count from its arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    /// The delay of `retry-after` or of a header like it, which comes before all others.
    pub(super) header: Option<Duration>,
    /// The delay before the next try, as the body states it.
    pub(super) retry: Stated,
    /// The time until a limit is renewed, as the body states it.
    pub(super) reset: Stated,
    /// The time until a limit is renewed that a header calls used up. Such headers come with any
    /// answer, so that only a failure by a limit is about them.
    pub(super) limit: Option<Duration>,
    /// The phrase that precedes the first time in a text; empty without one.
    pub(super) words: &'static str,
    /// Whether a text names the point in time at which a limit is renewed, as plans do.
    pub(super) names_renewal: bool,
}

/// Numbers above this one are times of Unix, in seconds: it is in the year 2001.
const UNIX: u64 = 1_000_000_000;

/// Numbers above this one are times of Unix, in milliseconds.
const UNIX_MILLIS: u64 = 100_000_000_000;

impl Times {
    /// Reads the headers of an answer; `now` is the wall clock.
    pub(super) fn of_headers(headers: &HeaderMap, now: SystemTime) -> Self {
        let mut times = Self {
            header: retry_after::read(headers, now),
            ..Self::default()
        };
        let text = |name: &str| headers.get(name).map(HeaderValue::to_str)?.ok();
        for name in headers.keys().map(HeaderName::as_str) {
            if let Some(reset) = text(name).and_then(|value| reset_of(name, value, now, text)) {
                times.limit = times.limit.max(Some(reset));
            }
        }
        times
    }

    /// Reads headers that an error repeats in its body, as OpenRouter does.
    pub(super) fn add_header_object(&mut self, headers: &Value, now: SystemTime) {
        let Some(members) = headers.as_object() else {
            return;
        };
        let text = |wanted: &str| {
            let mut members = members.iter();
            let found = members.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.and_then(|(_, value)| value.as_str())
        };
        for (name, value) in members.iter().take(32) {
            let name = name.to_ascii_lowercase();
            let number;
            let value = match value {
                Value::String(value) => &**value,
                Value::Number(value) => {
                    number = value.to_string();
                    &*number
                }
                _ => continue,
            };
            if let Some(reset) = reset_of(&name, value, now, text) {
                self.limit = self.limit.max(Some(reset));
            } else if name == "retry-after" {
                let delay = retry_after::seconds_or_date(value, now).map(capped);
                self.retry.structured = self.retry.structured.max(delay);
            }
        }
    }

    /// Reads the fields of an error object.
    pub(super) fn add_object(&mut self, object: &Value, is_inner: bool, now: SystemTime) {
        let number = |key: &str| match &object[key] {
            Value::Number(number) => Some(number.to_string()),
            Value::String(text) => Some(text.clone()),
            _ => None,
        };
        let side = |stated: &mut Stated, time: Option<Duration>| {
            let slot = match is_inner {
                true => &mut stated.text,
                false => &mut stated.structured,
            };
            *slot = (*slot).max(time.map(capped));
        };
        for key in ["resets_in_seconds", "reset_in_seconds", "resets_in"] {
            let time = number(key).and_then(|text| retry_after::decimal(&text, 9));
            side(&mut self.reset, time);
        }
        for key in ["resets_at", "reset_at", "resetsAt", "quota_reset_at"] {
            side(&mut self.reset, number(key).and_then(|text| at(&text, now)));
        }
        for key in ["retry_after", "retry_after_seconds", "retryAfter"] {
            let time = number(key).and_then(|text| retry_after::seconds_or_date(&text, now));
            side(&mut self.retry, time);
        }
        let google = object["retryDelay"].as_str();
        side(&mut self.retry, google.and_then(retry_after::seconds));
    }

    /// Reads the times in a message.
    pub(super) fn add_text(&mut self, text: &str, now: SystemTime) {
        let retry = retry_after::found_in_prose(text);
        let reset = reset_in_prose(text, now);
        self.names_renewal |= reset.is_some_and(|(_, words)| !words.contains(" in "));
        for (slot, found) in [(&mut self.retry.text, retry), (&mut self.reset.text, reset)] {
            if let (None, Some((time, words))) = (&slot, found) {
                *slot = Some(capped(time));
                if self.words.is_empty() {
                    self.words = words;
                }
            }
        }
    }
}

/// The time of a header that says when a limit is renewed: only of a limit that is used up.
///
/// `text` finds the values of other headers.
fn reset_of<'a>(
    name: &str,
    value: &str,
    now: SystemTime,
    text: impl Fn(&str) -> Option<&'a str>,
) -> Option<Duration> {
    let is_used_up = |remaining: &str| {
        text(remaining).is_none_or(|left| left.trim().trim_start_matches(['0', '.']).is_empty())
    };
    let left = match name {
        "x-ratelimit-reset" | "ratelimit-reset" => name.replace("reset", "remaining"),
        _ => {
            let limit = name.strip_prefix("x-ratelimit-reset-");
            let of_anthropic = || {
                name.strip_prefix("anthropic-ratelimit-")?
                    .strip_suffix("-reset")
            };
            match (limit, of_anthropic()) {
                (Some(limit), _) => format!("x-ratelimit-remaining-{limit}"),
                (_, Some(limit)) => format!("anthropic-ratelimit-{limit}-remaining"),
                _ => return None,
            }
        }
    };
    if name == "anthropic-ratelimit-unified-reset" {
        let is_rejected = text("anthropic-ratelimit-unified-status")
            .is_none_or(|status| status.trim() == "rejected");
        return at(value, now).filter(|_| is_rejected).map(capped);
    }
    // Of several limits only the one with nothing left tells until when.
    let is_one_of_several = name.contains("reset-") || name.starts_with("anthropic");
    if is_one_of_several && text(&left).is_none() || !is_used_up(&left) {
        return None;
    }
    retry_after::prefixed(value)
        .or_else(|| at(value, now))
        .or_else(|| retry_after::decimal(value.trim(), 9))
        .map(capped)
}

/// Parses a point in time: Unix in seconds or milliseconds, or a date. A number too small for
/// either is a number of seconds.
pub(super) fn at(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    unix(text, now)
        .or_else(|| retry_after::decimal(text, 9))
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

/// The phrases that precede the time at which a limit is renewed.
const BEFORE: [&str; 9] = [
    "resets at ",
    "reset at ",
    "resets on ",
    "resets in ",
    "reset in ",
    "resets after ",
    "reset after ",
    "available again at ",
    "limit reached|",
];

/// Reads the time in the prose of an error message at which a limit is renewed.
fn reset_in_prose(text: &str, now: SystemTime) -> Option<(Duration, &'static str)> {
    BEFORE.iter().find_map(|before| {
        let at = prose::position(text, before)?;
        if prose::is_quoted(text, at) {
            return None;
        }
        let rest = text.get(at + before.len()..)?.trim_start();
        let rest = rest.strip_prefix("about ").unwrap_or(rest);
        let end = rest.find(|char: char| !char.is_ascii_digit());
        let digits = &rest[..end.unwrap_or(rest.len())];
        let time = iso(rest, now).map(|(time, _)| time);
        let time = time.or_else(|| unix(digits, now));
        Some((time.or_else(|| retry_after::prefixed(rest))?, *before))
    })
}

/// Parses the date with which a text begins, as in `2026-06-10T08:30:00Z`: also with a space in
/// place of the `T`, without seconds, with a fraction, and with an offset. Without an offset the
/// date is in UTC. Also returns the date's length.
fn iso(text: &str, now: SystemTime) -> Option<(Duration, usize)> {
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
