//! The names that dates are written with.

use super::words::{is_any, word_end};

#[derive(PartialEq, Eq)]
enum CalendarName {
    Month,
    Day,
}

#[rustfmt::skip]
const FULL: [&[u8]; 19] = [
    b"january", b"february", b"march", b"april", b"may", b"june", b"july", b"august",
    b"september", b"october", b"november", b"december",
    b"monday", b"tuesday", b"wednesday", b"thursday", b"friday", b"saturday", b"sunday",
];

/// Where the name of a month or weekday that begins at `at` ends, if a date
/// goes on after it: "may" and "sun" are words, too.
pub(super) fn name(bytes: &[u8], at: usize) -> Option<usize> {
    let (name, end) = named(bytes, at)?;
    let next = next(bytes, end)?;
    let goes_on =
        bytes[next].is_ascii_digit() || name == CalendarName::Day && is_month_of_date(bytes, next);
    goes_on.then_some(end)
}

fn is_month_of_date(bytes: &[u8], at: usize) -> bool {
    let Some((CalendarName::Month, end)) = named(bytes, at) else {
        return false;
    };
    next(bytes, end).is_some_and(|next| bytes[next].is_ascii_digit())
}

/// A name in full, or its first three letters.
fn named(bytes: &[u8], at: usize) -> Option<(CalendarName, usize)> {
    let head = bytes.get(at..at + 3)?;
    // Every word comes by here: these three letters settle it for almost all.
    let name = match &[head[0] | 0x20, head[1] | 0x20, head[2] | 0x20] {
        b"jan" | b"feb" | b"mar" | b"apr" | b"may" | b"jun" | b"jul" | b"aug" | b"sep" | b"oct"
        | b"nov" | b"dec" => CalendarName::Month,
        b"mon" | b"tue" | b"wed" | b"thu" | b"fri" | b"sat" | b"sun" => CalendarName::Day,
        _ => return None,
    };
    let end = word_end(bytes, at);
    let fits = end - at == 3 || is_any(&bytes[at..end], &FULL);
    fits.then_some((name, end))
}

/// What follows a name that ends at `end`, if something is in between.
fn next(bytes: &[u8], end: usize) -> Option<usize> {
    let skip = bytes[end..]
        .iter()
        .position(|byte| !b" ,-/".contains(byte))?;
    (skip > 0).then_some(end + skip)
}
