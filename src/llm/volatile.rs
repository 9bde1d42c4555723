//! Replaces the words of a text that differ between repeats: ids, times, durations, addresses.
//!
//! Error keys and the results of tool calls are compared without these words.

/// The byte that stands for a volatile word. UTF-8 never has it, so no message contains it.
const PLACEHOLDER: u8 = 0xfe;

/// Prefixes of ids: a word with such a prefix is volatile even without a digit.
#[rustfmt::skip]
const PREFIXES: [&str; 8] = [
    "req", "call", "chatcmpl", "msg", "toolu", "resp", "run", "thread",
];

/// The minimum length of an id after its prefix: `call_function` is shorter, so it is no id.
const ID: usize = 16;

/// Units of time, which belong to the number before them, as in "5 minutes".
#[rustfmt::skip]
const UNITS: [&str; 28] = [
    "ns", "nanosecond", "nanoseconds", "us", "\u{b5}s", "\u{3bc}s", "microseconds", "ms",
    "millisecond", "milliseconds", "s", "sec", "secs", "second", "seconds", "m", "min", "mins",
    "minute", "minutes", "h", "hr", "hrs", "hour", "hours", "d", "day", "days",
];

/// The treatment of a number that is short and no part of a time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShortNumbers {
    /// The number is volatile: in an error it is mostly a part of an address or an id.
    Replaced,
    /// The number stays: in a tool's result a page or a percentage is often the news.
    Kept,
}

/// The length from which on a number is an id or a timestamp, and not short.
const LONG: usize = 10;

/// Passes the bytes of `text` to `emit`, with a placeholder for each volatile word.
pub(crate) fn normalise(text: &str, short: ShortNumbers, mut emit: impl FnMut(u8)) {
    let mut rest = text.trim();
    // Whether the number before, and so the next one, is part of a time such as `10:31:07`.
    let mut in_time = false;
    while let Some(first) = rest.chars().next() {
        let (word, after) = rest.split_at(word_end(rest));
        let then = without_unit(word, after);
        let goes_on = matches!(after.as_bytes(), [b':', b'0'..=b'9', ..]);
        let is_short = is_number(word) && word.len() < LONG && then == after;
        let stays = is_short && !goes_on && !in_time && short == ShortNumbers::Kept;
        if !word.is_empty() {
            in_time = goes_on && is_number(word);
        }
        if is_volatile(word) && !stays {
            emit(PLACEHOLDER);
            rest = then;
        } else if first.is_whitespace() {
            emit(b' ');
            rest = rest.trim_start();
        } else {
            let (kept, later) = rest.split_at(word.len().max(first.len_utf8()));
            for lower in kept.chars().flat_map(char::to_lowercase) {
                lower.encode_utf8(&mut [0; 4]).bytes().for_each(&mut emit);
            }
            rest = later;
        }
    }
}

/// The index at which the word at the start of `text` ends. A word is ASCII letters and digits, and
/// the characters that join two of them, as in `1.5`, `1,000` and `2026-11-03`.
fn word_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let next = |at: usize| bytes.get(at + 1).is_some_and(u8::is_ascii_alphanumeric);
    let mut chars = text.char_indices();
    let end = chars.find(|&(at, char)| match char {
        '-' | '_' => at == 0 || !next(at),
        '.' | ',' => at == 0 || !digit(at - 1) || !digit(at + 1),
        // Unicode has two micro signs, and both are part of a unit.
        '\u{b5}' | '\u{3bc}' => false,
        _ => !char.is_ascii_alphanumeric(),
    });
    end.map_or(text.len(), |(at, _)| at)
}

/// Whether a word may differ between two occurrences of one error: a number or an id.
fn is_volatile(word: &str) -> bool {
    let is_id = |(prefix, id): (&str, &str)| {
        let plain = id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        id.len() >= ID && plain && PREFIXES.contains(&prefix)
    };
    word.bytes().any(|byte| byte.is_ascii_digit()) || word.split_once(['-', '_']).is_some_and(is_id)
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| b"0123456789.,".contains(&byte))
}

/// The text that follows a volatile word, without its unit if the word is a number.
fn without_unit<'a>(word: &str, after: &'a str) -> &'a str {
    let rest = after.trim_start();
    let (unit, rest) = rest.split_at(word_end(rest));
    let mut units = UNITS.iter();
    match is_number(word) && units.any(|known| known.eq_ignore_ascii_case(unit)) {
        true => rest,
        false => after,
    }
}
