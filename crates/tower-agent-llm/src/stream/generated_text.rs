//! The text that a model generated, counted in bytes, and the usage that an answer states.
//!
//! Some upstreams state the tokens of an answer at its end or never. A cap on tokens then needs
//! an estimate while the answer streams: [`estimated_tokens`] takes one token for each
//! [`BYTES_PER_TOKEN`] bytes of generated text.

use memchr::memchr2;

use crate::{dialect::Usage, json_scanner::Text, text_channel::TextChannel};

/// The bytes of generated text that count as one token.
///
/// OpenAI's guide to its tokenizers gives four characters of English for a token. Other scripts
/// have fewer characters in a token, and more bytes in a character.
pub const BYTES_PER_TOKEN: u64 = 4;

/// The most bytes of a string that are kept, to compare it: no known key or type is longer.
const MAX_WORD: usize = 48;

/// The number of bytes of a `usage` after which no further part of it is kept.
pub(crate) const MAX_USAGE: usize = 4096;

/// The most levels of a document; the reader ignores the rest of a deeper one.
const MAX_DEPTH: usize = 127;

/// The tokens that these bytes of generated text stand for, rounded up.
#[must_use]
pub const fn estimated_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Reads a JSON object in pieces: an event, or an answer that is not a stream.
///
/// The reader counts the bytes of JSON strings, escapes included, that a model generated, and keeps
/// the top-level `usage`, or `timings`. For a document that is not an object the count is 0, and
/// there is no usage.
#[derive(Debug, Default)]
pub struct GeneratedText {
    levels: Vec<Level>,
    string: JsonString,
    /// The key of the next value.
    key: KeyKind,
    /// Whether the next string is a key.
    expects_key: bool,
    is_over: bool,
    bytes: GeneratedBytes,
    usage: Vec<u8>,
}

/// The string that is being read.
#[derive(Debug, Default)]
struct JsonString {
    is_open: bool,
    /// Whether a backslash escapes the next byte.
    is_escaped: bool,
    len: usize,
    /// The first bytes of the string.
    word: Vec<u8>,
}

/// An object or array that is being read.
#[derive(Debug)]
struct Level {
    is_object: bool,
    is_usage: bool,
    /// Whether the texts in the level are details of the model's reasoning.
    is_details: bool,
    /// Whether the level's `type` says that its strings are not text of the model.
    is_without_text: bool,
    /// The number of bytes that the model generated before this object or array.
    before: GeneratedBytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum KeyKind {
    #[default]
    Other,
    Text(TextChannel),
    Details,
    Type,
    Usage,
}

/// The number of bytes that a model generated, by [`TextChannel`].
#[derive(Clone, Copy, Debug, Default)]
struct GeneratedBytes([u64; 4]);

impl GeneratedBytes {
    const fn add(&mut self, channel: TextChannel, bytes: usize) {
        self.0[channel as usize] += bytes as u64;
    }

    /// The sum over the channels; of those of reasoning only the largest counts.
    fn sum(self) -> u64 {
        let [answer, reasoning, content, details] = self.0;
        answer + reasoning.max(content).max(details)
    }
}

/// Whether the byte, outside of a string, is a bracket, a comma, a colon or a quote.
const fn is_structure(byte: u8) -> bool {
    matches!(byte, b'{' | b'}' | b'[' | b']' | b',' | b':' | b'"')
}

/// Whether strings under this key count as text of the model.
///
/// Strings in an object with a type for which [`is_without_text`] holds do not count in the end.
pub(super) fn is_generated(key: &[u8]) -> bool {
    TextChannel::of_key(key).is_some()
}

/// Whether the strings in an object of this type are not text of the model.
///
/// Objects without text of the model are results of tools that the upstream ran, and audio.
fn is_without_text(kind: &[u8]) -> bool {
    kind.ends_with(b"_tool_result") || kind.ends_with(b"audio.delta")
}

impl GeneratedText {
    /// Reads a new, complete document; returns the number of bytes that the model generated.
    pub(super) fn read(&mut self, document: &[u8]) -> u64 {
        let Self {
            mut levels,
            string,
            mut usage,
            ..
        } = std::mem::take(self);
        // The buffers stay allocated.
        levels.clear();
        usage.clear();
        (self.levels, self.string.word, self.usage) = (levels, string.word, usage);
        self.push(document);
        self.bytes()
    }

    /// The number of bytes that the model generated so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.sum()
    }

    /// The usage that the answer states, with the keys of any dialect, or else llama.cpp's
    /// `timings`.
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        Usage::of_object(&self.usage).or_else(|| Usage::of_timings(&self.usage))
    }

    /// Reads the next piece of the document.
    pub fn push(&mut self, piece: &[u8]) {
        let mut at = 0;
        while at < piece.len() && !self.is_over {
            let from = at;
            let was_usage = self.is_in_usage();
            if self.string.is_open {
                at += self.read_string(&piece[at..]);
            } else {
                self.read_structure(piece[at]);
                at += 1;
                if !self.levels.is_empty() && !self.string.is_open {
                    // Skip numbers and white space at once: an answer may be a megabyte of numbers.
                    let rest = piece[at..].iter();
                    at += rest.take_while(|byte| !is_structure(**byte)).count();
                }
            }
            if was_usage || self.is_in_usage() {
                let room = MAX_USAGE - self.usage.len();
                self.usage.extend(piece[from..at].iter().take(room));
            }
        }
    }

    fn is_in_usage(&self) -> bool {
        self.levels.get(1).is_some_and(|level| level.is_usage)
    }

    fn read_structure(&mut self, byte: u8) {
        match byte {
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => {
                if let Some(level) = self.levels.pop().filter(|level| level.is_without_text) {
                    self.bytes = level.before;
                }
                self.is_over = self.levels.is_empty();
            }
            b',' => {
                self.key = KeyKind::Other;
                self.expects_key = self.levels.last().is_some_and(|level| level.is_object);
            }
            b':' => self.expects_key = false,
            b'"' => {
                self.string.is_open = true;
                self.string.len = 0;
                self.string.word.clear();
            }
            _ => {}
        }
        // Only white space may stand before the object.
        self.is_over |= self.levels.is_empty() && !byte.is_ascii_whitespace();
    }

    fn open(&mut self, is_object: bool) {
        let key = std::mem::take(&mut self.key);
        let depth = self.levels.len();
        let is_usage = is_object && depth == 1 && key == KeyKind::Usage;
        if is_usage {
            self.usage.clear();
        }
        self.is_over = depth == MAX_DEPTH || depth == 0 && !is_object;
        let is_details = self.levels.last().is_some_and(|level| level.is_details);
        self.levels.push(Level {
            is_object,
            is_usage,
            is_details: is_details || key == KeyKind::Details,
            is_without_text: false,
            before: self.bytes,
        });
        self.expects_key = is_object;
    }

    /// Reads a part of a string. It ends at the closing quote, the backslash of an escape, or the
    /// end of the piece.
    ///
    /// An escaped byte is a part by itself. The result is the length of the part in bytes.
    fn read_string(&mut self, piece: &[u8]) -> usize {
        if std::mem::take(&mut self.string.is_escaped) {
            self.take(&piece[..1]);
            return 1;
        }
        let len = memchr2(b'"', b'\\', piece).unwrap_or(piece.len());
        match piece.get(len) {
            Some(b'"') => {
                self.take(&piece[..len]);
                self.close_string();
                len + 1
            }
            Some(_) => {
                self.take(&piece[..=len]);
                self.string.is_escaped = true;
                len + 1
            }
            None => {
                self.take(piece);
                len
            }
        }
    }

    fn take(&mut self, part: &[u8]) {
        let string = &mut self.string;
        string.len += part.len();
        let room = MAX_WORD.saturating_sub(string.word.len());
        string.word.extend_from_slice(&part[..part.len().min(room)]);
        if let (KeyKind::Text(channel), false) = (self.key, self.expects_key) {
            self.bytes.add(channel, part.len());
        }
    }

    fn close_string(&mut self) {
        let string = &mut self.string;
        string.is_open = false;
        let is_whole = string.len <= MAX_WORD;
        if self.expects_key {
            string.word.push(b'"');
            let key = Text::before_quote(&string.word).filter(|_| is_whole);
            let is_details = self.levels.last().is_some_and(|level| level.is_details);
            self.key = key.map_or(KeyKind::Other, |key| {
                KeyKind::of(&key.decoded(), is_details)
            });
        } else if self.key == KeyKind::Type && is_whole && is_without_text(&string.word) {
            if let Some(level) = self.levels.last_mut() {
                level.is_without_text = true;
            }
        }
    }
}

impl KeyKind {
    fn of(key: &[u8], is_details: bool) -> Self {
        match key {
            b"reasoning_details" => Self::Details,
            b"type" => Self::Type,
            b"usage" | b"timings" => Self::Usage,
            _ => match TextChannel::of_key(key) {
                Some(_) if is_details => Self::Text(TextChannel::ReasoningDetails),
                Some(channel) => Self::Text(channel),
                None => Self::Other,
            },
        }
    }
}
