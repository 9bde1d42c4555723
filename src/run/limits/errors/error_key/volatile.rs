//! Recognises what is another each time: numbers, ids, times, addresses.

use super::{
    calendar,
    words::{is_any, word_end},
};

/// From how many characters on a word of letters and digits is an id.
const ID: usize = 6;

/// From how many characters on a word after one of these is an id, digits or
/// not.
const PREFIXED: usize = 16;
#[rustfmt::skip]
const PREFIXES: [&[u8]; 8] = [
    b"req", b"call", b"chatcmpl", b"msg", b"toolu", b"resp", b"run", b"thread",
];

#[rustfmt::skip]
const UNITS: [&[u8]; 26] = [
    b"ns", b"us", b"ms", b"s", b"sec", b"secs", b"second", b"seconds", b"m", b"min",
    b"mins", b"minute", b"minutes", b"h", b"hr", b"hrs", b"hour", b"hours", b"d",
    b"day", b"days", b"millisecond", b"milliseconds", b"microseconds", b"nanosecond",
    b"nanoseconds",
];
/// The micro sign, and the letter that looks like it.
const MICRO: [&[u8]; 2] = ["\u{b5}s".as_bytes(), "\u{3bc}s".as_bytes()];

/// Where the volatile part that begins at `at` ends, if one does.
///
/// Parts that are joined by one character are one: `10.0.0.1:8080`,
/// `2026-11-03T10:00:00.5Z`. So are a number and its unit.
pub(super) fn at(bytes: &[u8], at: usize) -> Option<usize> {
    if at > 0 && bytes[at - 1].is_ascii_alphanumeric() {
        return None;
    }
    let first = at + usize::from(is_sign(bytes, at));
    if !bytes[first].is_ascii_alphanumeric() && bytes[first] != b':' {
        return None;
    }
    if let Some(end) = calendar::name(bytes, first) {
        return Some(end);
    }
    let (mut from, mut end) = (first, one(bytes, first)?);
    while let Some(next) = joined(bytes, end) {
        (from, end) = (end + 1, next);
    }
    // What follows an id is no unit, also if it is one's name.
    let number = bytes[from..end].iter().all(u8::is_ascii_digit);
    let with_unit = if number { unit(bytes, end) } else { None };
    Some(with_unit.unwrap_or(end))
}

fn one(bytes: &[u8], at: usize) -> Option<usize> {
    uuid(bytes, at)
        .or_else(|| colons(bytes, at))
        .or_else(|| id(bytes, at))
}

fn joined(bytes: &[u8], end: usize) -> Option<usize> {
    let joint = bytes.get(end)?;
    b".:,-/+_".contains(joint).then(|| one(bytes, end + 1))?
}

/// A number, one with a unit, an id.
fn id(bytes: &[u8], at: usize) -> Option<usize> {
    let end = word_end(bytes, at);
    let word = &bytes[at.min(end)..end];
    let volatile = word.first()?.is_ascii_digit()
        || word.len() >= ID && word.iter().any(u8::is_ascii_digit)
        || word.len() >= PREFIXED && is_prefixed(bytes, at);
    volatile.then_some(end)
}

fn is_prefixed(bytes: &[u8], at: usize) -> bool {
    let before = &bytes[..at];
    let [rest @ .., b'_' | b'-'] = before else {
        return false;
    };
    PREFIXES.iter().any(|prefix| {
        rest.strip_suffix(*prefix)
            .is_some_and(|rest| !rest.last().is_some_and(u8::is_ascii_alphanumeric))
    })
}

/// `8-4-4-4-12` hex digits.
fn uuid(bytes: &[u8], at: usize) -> Option<usize> {
    // Most words are told from one by this alone.
    if *bytes.get(at + 8)? != b'-' {
        return None;
    }
    let text = bytes.get(at..at + 36)?;
    let fits = text.iter().enumerate().all(|(place, byte)| match place {
        8 | 13 | 18 | 23 => *byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    });
    let end = at + 36;
    (fits && word_end(bytes, end) == end).then_some(end)
}

/// An IPv6 address, also one that ends in an IPv4 address, or a MAC address.
fn colons(bytes: &[u8], at: usize) -> Option<usize> {
    const LONGEST: usize = 45;
    let rest = &bytes[at.min(bytes.len())..];
    if !matches!(rest, [b':', b':', ..]) && !rest.iter().take(5).any(|byte| *byte == b':') {
        return None;
    }
    let is_part = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
    let length = rest
        .iter()
        .take(LONGEST)
        .take_while(|byte| is_part(byte))
        .count();
    let mut text = &rest[..length];
    if word_end(rest, length) != length {
        return None;
    }
    // A full stop, or what follows in a sentence.
    while let [cut @ .., b'.'] | [cut @ .., b':'] = text {
        if text.ends_with(b"::") {
            break;
        }
        text = cut;
    }
    let mut groups = text.split(|byte| *byte == b':');
    let count = groups.clone().count();
    let short = text.windows(2).any(|pair| pair == b"::");
    let fits = (short || count == 8)
        && groups
            .clone()
            .all(|group| group.len() <= 4 || group.contains(&b'.'))
        || count == 6 && groups.all(|group| group.len() == 2);
    let digits = text.iter().any(u8::is_ascii_digit);
    (fits && digits).then_some(at + text.len())
}

/// A sign, or a point without a zero, before a number.
fn is_sign(bytes: &[u8], at: usize) -> bool {
    let starts =
        at == 0 || bytes[at - 1].is_ascii_whitespace() || b"([{<=\"'`".contains(&bytes[at - 1]);
    starts && b"+-.".contains(&bytes[at]) && bytes.get(at + 1).is_some_and(u8::is_ascii_digit)
}

/// Where the unit ends that follows a number which ends at `end`: a letter may
/// already be part of the number's word.
fn unit(bytes: &[u8], end: usize) -> Option<usize> {
    let rest = &bytes[end..];
    if let Some(unit) = MICRO.iter().find(|unit| rest.starts_with(unit)) {
        return Some(end + unit.len());
    }
    let start = end + rest.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let after = word_end(bytes, start);
    is_any(&bytes[start..after], &UNITS).then_some(after)
}
