//! Reads delays in the body of an error.

use std::time::Duration;

use super::{error_messages, retry_after::decimal};

/// The phrases that precede a delay in an upstream's error message.
const BEFORE: [&str; 4] = [
    // OpenAI, Groq, Azure
    "again in ",
    // Gemini
    "retry in ",
    // Azure
    "retry after ",
    // Bedrock
    "again after ",
];

/// Reads the delay in the prose of an error message, as in "try again in 1m30s".
pub(super) fn in_prose(message: &str) -> Option<Duration> {
    BEFORE.iter().find_map(|before| {
        let mut rest = message;
        std::iter::from_fn(|| {
            rest = error_messages::after(rest, before)?;
            Some(rest)
        })
        .find_map(sum)
    })
}

/// Parses a JSON duration, as in "34.07s".
pub(super) fn seconds(text: &str) -> Option<Duration> {
    decimal(text.strip_suffix('s')?, 9)
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
    // The number is rounded up before the multiplication, so that the delay is never too
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
