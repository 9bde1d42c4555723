//! Reads the delay that an upstream asks for, in the headers or in the body of an error.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, header};

use super::{
    instants::{self, decimal},
    prose,
};

/// The longest delay that an upstream can ask for, 30 days; a longer one is cut to it.
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Reads the delay that an upstream's headers ask for, never rounded down.
///
/// The delay is that of `retry-after-ms`, else that of `retry-after`, in seconds, as a date, or as
/// a time of Unix, else that of `llm_provider-retry-after`, as which LiteLLM hands it on. Of several
/// headers of one name the first that parses counts. For a date in the past the delay is zero.
pub(super) fn read(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let millis = ["retry-after-ms", "llm_provider-retry-after-ms"].map(HeaderName::from_static);
    let [own, passed_on] = [
        header::RETRY_AFTER,
        HeaderName::from_static("llm_provider-retry-after"),
    ];
    let in_millis = |name| values(headers, name).find_map(|text| decimal(text, 6));
    let in_seconds = |name| values(headers, name).find_map(|text| seconds_or_date(text, now));
    in_millis(&millis[0])
        .or_else(|| in_seconds(&own))
        .or_else(|| in_millis(&millis[1]))
        .or_else(|| in_seconds(&passed_on))
        .map(capped)
}

/// Parses the value of a `retry-after`: seconds, a date, or a time of Unix.
pub(super) fn seconds_or_date(text: &str, now: SystemTime) -> Option<Duration> {
    instants::unix(text, now)
        .or_else(|| decimal(text, 9))
        .or_else(|| until(text, now))
}

/// Cuts a delay to [`LONGEST`], so that its sum with an instant does not overflow.
pub(super) fn capped(delay: Duration) -> Duration {
    delay.min(LONGEST)
}

fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter();
    values.filter_map(|value| value.to_str().ok().map(str::trim))
}

fn until(text: &str, now: SystemTime) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// The phrases that precede a delay in an upstream's error message.
const BEFORE: [&str; 4] = [
    // OpenAI, Groq and Azure write the next phrase.
    "again in ",
    // The Gemini API writes the next phrase.
    "retry in ",
    // Azure writes the next phrase.
    "retry after ",
    // Bedrock writes the next phrase.
    "again after ",
];

/// Reads the delay in the prose of an error message, outside of quotation marks. Also returns the
/// phrase before it.
pub(super) fn found_in_prose(message: &str) -> Option<(Duration, &'static str)> {
    BEFORE.iter().find_map(|before| {
        let mut from = 0;
        let places = std::iter::from_fn(|| {
            let at = from + prose::position(message.get(from..)?, before)?;
            from = at + before.len();
            Some(at)
        });
        let mut places = places.filter(|at| !prose::is_quoted(message, *at));
        let delay = places.find_map(|at| sum(message.get(at + before.len()..)?))?;
        Some((delay, *before))
    })
}

/// Parses a JSON duration, as in "34.07s".
pub(super) fn seconds(text: &str) -> Option<Duration> {
    decimal(text.strip_suffix('s')?, 9)
}

/// Parses the duration with which `text` begins, as in "1h2m 3.5 seconds".
pub(super) fn prefixed(text: &str) -> Option<Duration> {
    sum(text)
}

/// Sums the parts of the duration with which `text` begins, as in "1h2m 3.5 seconds".
fn sum(text: &str) -> Option<Duration> {
    let mut sum = None;
    let mut rest = text;
    while let Some((part, next)) = part(rest) {
        sum = Some(part.saturating_add(sum.unwrap_or_default()));
        rest = next.trim_start();
    }
    sum
}

fn part(text: &str) -> Option<(Duration, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, rest) = text.split_at(end);
    let rest = rest.strip_prefix(' ').unwrap_or(rest);
    let end = rest.find(|c: char| !c.is_ascii_alphabetic());
    let (word, rest) = rest.split_at(end.unwrap_or(rest.len()));
    // `decimal` rounds the number up before the multiplication, so the delay is never too
    // short.
    let times = |factor| Some(decimal(number, 9)?.saturating_mul(factor));
    let part = match word {
        "ms" | "millisecond" | "milliseconds" => decimal(number, 6),
        "s" | "second" | "seconds" => times(1),
        "m" | "minute" | "minutes" => times(60),
        "h" | "hour" | "hours" => times(60 * 60),
        "d" | "day" | "days" => times(24 * 60 * 60),
        _ => None,
    }?;
    Some((part, rest))
}
