//! Replaces the volatile words of a text: ids, times, durations, addresses.
//!
//! These words differ when the same error or the same tool result occurs again, so errors and tool
//! results are compared without them.

/// The byte that stands for a volatile word. UTF-8 never has this byte, so no text contains it.
pub(super) const PLACEHOLDER: u8 = 0xfe;

/// The prefixes of ids. An id behind such a prefix and `-` or `_` is volatile without a digit too.
#[rustfmt::skip]
pub(super) const PREFIXES: [&str; 8] = [
    "req", "call", "chatcmpl", "msg", "toolu", "resp", "run", "thread",
];

/// The minimum length of an id behind its prefix, so that `call_function` is not an id.
pub(super) const ID: usize = 16;

/// Units of time, which belong to the number before them, as in "5 minutes".
#[rustfmt::skip]
pub(super) const UNITS: [&str; 28] = [
    "ns", "nanosecond", "nanoseconds", "us", "\u{b5}s", "\u{3bc}s", "microseconds", "ms",
    "millisecond", "milliseconds", "s", "sec", "secs", "second", "seconds", "m", "min", "mins",
    "minute", "minutes", "h", "hr", "hrs", "hour", "hours", "d", "day", "days",
];

/// The treatment of a short number that has no unit and is not a part of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShortNumbers {
    /// The number is volatile: in an error it is mostly a part of an address or an id.
    Replaced,
    /// The number stays: in a tool's result, a page number or a percentage often shows progress.
    Kept,
}

/// The length in bytes from which on a number is an id or a timestamp, and not short.
pub(super) const LONG: usize = 10;

/// A byte that is an ASCII letter.
///
/// `LETTER` and the constants after it, up to `WIDE`, are the classes of bytes. The class of any
/// other byte is zero.
const LETTER: u8 = 1;
const DIGIT: u8 = 2;
/// A byte that joins two digits: `.` or `,`.
const POINT: u8 = 4;
/// A byte that joins two letters or digits: `-` or `_`.
const HYPHEN: u8 = 8;
/// A byte with which a micro sign begins; other characters begin with it too.
const MICRO: u8 = 16;
const SPACE: u8 = 32;
/// A byte of a non-ASCII character, other than those of the class `MICRO`.
const WIDE: u8 = 64;

const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        classes[byte] = match byte as u8 {
            b'A'..=b'Z' | b'a'..=b'z' => LETTER,
            b'0'..=b'9' => DIGIT,
            b'.' | b',' => POINT,
            b'-' | b'_' => HYPHEN,
            0xc2 | 0xce => MICRO,
            b'\t'..=b'\r' | b' ' => SPACE,
            0x80.. => WIDE,
            _ => 0,
        };
        byte += 1;
    }
    classes
};

/// The most bytes that [`normalize`] passes to `emit` at once.
pub const PIECE: usize = 8;

/// Passes a form of `text` for comparison to `emit`, piece by piece.
///
/// The form is trimmed, in lower case, and has single spaces. One `PLACEHOLDER` replaces each
/// volatile word, and the unit behind a volatile number with it. `emit` gets a piece, and the
/// number of its bytes that count.
#[inline]
pub fn normalize(text: &str, short: ShortNumbers, mut emit: impl FnMut([u8; PIECE], usize)) {
    let text = text.trim();
    let bytes = text.as_bytes();
    let mut at = 0;
    // Whether a `:` joins the last number to the next one, as in the time `10:31:07`.
    let mut in_time = false;
    while let Some(&first) = bytes.get(at) {
        let is_letter = CLASSES[usize::from(first)] == LETTER;
        if let Some((lower, len)) = is_letter.then(|| short_letters(bytes, at)).flatten() {
            emit(lower, len);
            at += len;
            in_time = false;
            continue;
        }
        let (end, classes) = word(bytes, at);
        if end == at {
            at = pass_character(text, at, first, &mut emit);
            continue;
        }
        let is_number = classes & !(DIGIT | POINT) == 0;
        let then = if is_number {
            end_of_unit(text, end)
        } else {
            end
        };
        let goes_on = is_number && bytes[end..].starts_with(b":") && class(bytes, end + 1) == DIGIT;
        let is_short = is_number && end - at < LONG && then == end;
        let stays = is_short && !goes_on && !in_time && short == ShortNumbers::Kept;
        in_time = goes_on;
        if is_volatile(&bytes[at..end], classes) && !stays {
            emit([PLACEHOLDER; PIECE], 1);
            at = then;
        } else {
            for bytes in bytes[at..end].chunks(PIECE) {
                // Besides ASCII, a word contains only micro signs, which are lower case.
                let mut lower = [0; PIECE];
                lower[..bytes.len()].copy_from_slice(bytes);
                lower.make_ascii_lowercase();
                emit(lower, bytes.len());
            }
            at = end;
        }
    }
}

/// Returns the word at `at` in lower case, and its length, if it is one to seven letters.
///
/// A space behind the word is included. The result is `None` if the next bytes may be part of the
/// word or of that white space, or if fewer than eight bytes of the text are left.
#[inline]
fn short_letters(bytes: &[u8], at: usize) -> Option<([u8; PIECE], usize)> {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;

    let word = u64::from_le_bytes(*bytes[at..].first_chunk()?);
    let lower = word | (ONES * 0x20);
    // The sums are of seven-bit numbers, so that none carries into the next byte.
    let low = lower & !HIGH;
    let from_a = low + ONES * (0x80 - b'a' as u64);
    let beyond_z = low + ONES * (0x7f - b'z' as u64);
    let others = !(from_a & !beyond_z & !word) & HIGH;
    if others == 0 {
        return None;
    }
    // Only the lowest set bit is reliable. A set bit at `ends` is the lowest: letters precede it.
    let spaces = word ^ (ONES * b' ' as u64);
    let spaces = spaces.wrapping_sub(ONES) & !spaces & HIGH;
    let ends = others.trailing_zeros();
    let space = (spaces >> ends & 1) as usize;
    let len = ends as usize / 8 + space;
    // A next byte of these classes may belong to the word; behind a space, to the white space.
    let odd = [DIGIT | HYPHEN | MICRO, SPACE | MICRO | WIDE][space];
    (class(bytes, at + len) & odd == 0).then_some((lower.to_le_bytes(), len))
}

/// Passes the character at the index `at`, where no word begins, to `emit`.
///
/// White space of any length is passed as one space. The result is the index behind the character
/// or the white space.
#[inline]
fn pass_character(
    text: &str,
    mut at: usize,
    first: u8,
    emit: &mut impl FnMut([u8; PIECE], usize),
) -> usize {
    let bytes = text.as_bytes();
    if class(bytes, at) == SPACE {
        emit([b' '; PIECE], 1);
        while class(bytes, at) == SPACE {
            at += 1;
        }
        return match bytes.get(at) {
            None | Some(0..0x80) => at,
            Some(_) => text.len() - text[at..].trim_start().len(),
        };
    }
    if first.is_ascii() {
        emit([first; PIECE], 1);
        return at + 1;
    }
    let rest = &text[at..];
    let after = rest.trim_start();
    if after.len() < rest.len() {
        emit([b' '; PIECE], 1);
        return text.len() - after.len();
    }
    let char = rest.chars().next().unwrap_or_default();
    for lower in char.to_lowercase() {
        let mut bytes = [0; PIECE];
        let len = lower.encode_utf8(&mut bytes).len();
        emit(bytes, len);
    }
    at + char.len_utf8()
}

#[inline]
fn class(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).map_or(0, |&byte| CLASSES[usize::from(byte)])
}

/// Returns the index behind the word at `start`, and the classes of its bytes.
///
/// A word is ASCII letters, digits and micro signs, and the characters that join two of them, as
/// in `1.5`, `1,000` and `2026-11-03`. If there is no word, the index is `start`.
#[inline]
fn word(bytes: &[u8], start: usize) -> (usize, u8) {
    let class = |at| class(bytes, at);
    let (mut at, mut classes) = (start, 0);
    loop {
        let mut here = class(at);
        while here & (LETTER | DIGIT) != 0 {
            classes |= here;
            at += 1;
            here = class(at);
        }
        at += match here {
            HYPHEN if at > start && class(at + 1) & (LETTER | DIGIT) != 0 => 1,
            POINT if at > start && class(at - 1) == DIGIT && class(at + 1) == DIGIT => 1,
            // Unicode has two micro signs, and both are part of a unit.
            MICRO if matches!(bytes[at..], [0xc2, 0xb5, ..] | [0xce, 0xbc, ..]) => 2,
            _ => return (at, classes),
        };
        classes |= here;
    }
}

/// Whether a word may differ between two occurrences of one text: it has a digit, or is an id.
#[inline]
fn is_volatile(word: &[u8], classes: u8) -> bool {
    let is_id = || {
        let hyphen = word.iter().position(|byte| matches!(byte, b'-' | b'_'));
        hyphen.is_some_and(|hyphen| {
            let (prefix, id) = (&word[..hyphen], &word[hyphen + 1..]);
            id.len() >= ID
                && id.iter().all(u8::is_ascii_alphanumeric)
                && PREFIXES.iter().any(|known| known.as_bytes() == prefix)
        })
    };
    classes & DIGIT != 0 || classes & HYPHEN != 0 && is_id()
}

/// Returns the index behind the unit of the number that ends at `end`; `end` without a unit.
fn end_of_unit(text: &str, end: usize) -> usize {
    let unit_at = text.len() - text[end..].trim_start().len();
    let (unit_end, _) = word(text.as_bytes(), unit_at);
    let unit = &text[unit_at..unit_end];
    match UNITS.iter().any(|known| known.eq_ignore_ascii_case(unit)) {
        true => unit_end,
        false => end,
    }
}
