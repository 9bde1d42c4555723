//! Finds numbers and times in a tool's result that differ each time the tool runs.
//!
//! A result often says how long the tool took, in which process it ran and when, as in
//! `{"exit_code":0,"duration_seconds":0.1}`. The same result then looks new each time. A short
//! number shows by itself nothing of its meaning, but its key does: `exit_code` and `count` matter.
//!
//! # The keys
//!
//! A key is read as words: `wallTime`, `wall-time`, `Wall time` and `WALL_TIME` are `wall_time`. Of
//! these words the last one decides, or the last two:
//!
//! - durations: `duration`, `elapsed`, `took`, `latency`, `uptime`, `runtime`, `walltime`, and
//!   units: `ns`, `us`, `ms`, `sec`, `secs`, `seconds`, `minutes`, `hours`, `nanos`, `micros`,
//!   `millis`, `nanoseconds`, `microseconds`, `milliseconds`; `s` behind one of the first seven
//!   or `time`;
//! - processes: `pid`, `ppid`, `pgid`, `tid`; `process_id`, `thread_id`;
//! - times: `time`, `timestamp`, `ts`, `datetime`, `date`, `atime`, `mtime`, `ctime`; `at` behind
//!   another word, as in `started_at`.

/// The words that make a key volatile as its last word.
#[rustfmt::skip]
const LAST: [&str; 33] = [
    "duration", "elapsed", "took", "latency", "uptime", "runtime", "walltime", "ns", "us", "ms",
    "sec", "secs", "seconds", "minutes", "hours", "nanos", "micros", "millis", "nanoseconds",
    "microseconds", "milliseconds", "pid", "ppid", "pgid", "tid", "time", "timestamp", "ts",
    "datetime", "date", "atime", "mtime", "ctime",
];

/// The words of [`LAST`] behind which `s` is seconds.
#[rustfmt::skip]
const BEFORE_S: [&str; 8] = [
    "duration", "elapsed", "took", "latency", "uptime", "runtime", "walltime", "time",
];

/// The most bytes of a word that are compared: no listed word is longer.
const LONGEST: usize = 12;

/// A word of a key in lower case, cut behind [`LONGEST`] + 1 bytes.
#[derive(Clone, Copy, Default)]
struct Word {
    bytes: [u8; LONGEST + 1],
    len: usize,
}

impl Word {
    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.len) {
            *slot = byte.to_ascii_lowercase();
            self.len += 1;
        }
    }

    fn is(&self, word: &str) -> bool {
        self.bytes[..self.len] == *word.as_bytes()
    }

    fn is_one_of(&self, words: &[&str]) -> bool {
        words.iter().any(|word| self.is(word))
    }
}

/// Whether a number under this key is a duration, the id of a process, or a time.
#[must_use]
pub fn is_volatile_key(key: &[u8]) -> bool {
    let [before, last] = last_words(key);
    let is_id = last.is("id") && before.is_one_of(&["process", "thread"]);
    let is_unit = last.is("s") && before.is_one_of(&BEFORE_S);
    last.is_one_of(&LAST) || is_id || is_unit || last.is("at") && before.len > 0
}

/// The last two words of a key; a missing word is empty.
fn last_words(key: &[u8]) -> [Word; 2] {
    let (mut before, mut last) = (Word::default(), Word::default());
    let mut previous = b'_';
    for &byte in key {
        let is_word = byte.is_ascii_alphanumeric();
        let begins_anew = !previous.is_ascii_alphanumeric()
            || byte.is_ascii_uppercase() && !previous.is_ascii_uppercase();
        if is_word && begins_anew && last.len > 0 {
            before = std::mem::take(&mut last);
        }
        if is_word {
            last.push(byte);
        }
        previous = byte;
    }
    [before, last]
}

/// Whether a value under a [volatile key](is_volatile_key) is volatile: a number, or a string with
/// a number or a time of RFC 3339. The value is the text of the JSON number or string.
#[must_use]
pub fn is_volatile_value(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    is_number(text) || is_time(text)
}

/// Whether the text is a decimal number as JSON has it, with or without a sign.
fn is_number(text: &[u8]) -> bool {
    let begins = text.strip_prefix(b"-").unwrap_or(text);
    let is_plain = begins.first().is_some_and(u8::is_ascii_digit);
    is_plain && serde_json::from_slice::<serde_json::Number>(text).is_ok()
}

/// Whether the text is a time as in `2026-11-03T10:31:07.5+01:00`.
fn is_time(text: &[u8]) -> bool {
    const PATTERN: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let Some((time, rest)) = text.split_at_checked(PATTERN.len()) else {
        return false;
    };
    let fits = |(byte, pattern): (&u8, &u8)| match pattern {
        b'd' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't' | b' '),
        mark => byte == mark,
    };
    let fraction = rest.strip_prefix(b".").unwrap_or_default();
    let digits = fraction
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    let zone = &rest[if digits > 0 { digits + 1 } else { 0 }..];
    time.iter().zip(PATTERN).all(fits)
        && match zone {
            b"Z" | b"z" => true,
            [b'+' | b'-', zone @ ..] => zone.len() == 5 && zone.iter().zip(b"dd:dd").all(fits),
            _ => false,
        }
}

/// The lines with which Codex begins the output of a command, up to the line `Output:`; `None` for
/// any other text.
#[must_use]
pub fn command_header(text: &str) -> Option<(&str, &str)> {
    const OUTPUT: &str = "\nOutput:";
    /// No header is longer.
    const MOST: usize = 512;
    let begins = ["Exit code: ", "Chunk ID: ", "Wall time: "];
    if !begins.iter().any(|begin| text.starts_with(begin)) {
        return None;
    }
    let head = &text.as_bytes()[..text.len().min(MOST)];
    let end = memchr::memmem::find(head, OUTPUT.as_bytes())?;
    Some(text.split_at(end))
}

/// The name in a line of a [header](command_header) whose value is volatile, as in
/// `Wall time: 0.1 seconds`; `None` for any other line.
#[must_use]
pub fn volatile_name(line: &str) -> Option<&str> {
    let (name, value) = line.split_once(": ")?;
    let number = value.split_ascii_whitespace().next()?;
    let is_volatile = is_volatile_key(name.as_bytes()) && is_volatile_value(number.as_bytes());
    (is_volatile || name == "Chunk ID").then_some(name)
}
