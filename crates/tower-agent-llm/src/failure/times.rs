//! The times that a failed answer states: delays before the next try, and times at which a limit is
//! renewed.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

use super::{
    instants::{at, decimal, iso, unix},
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
            let time = number(key).and_then(|text| decimal(&text, 9));
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
        .or_else(|| decimal(value.trim(), 9))
        .map(capped)
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
