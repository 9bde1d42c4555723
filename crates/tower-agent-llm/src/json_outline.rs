//! Finds out whether a JSON document is complete, or was cut.

use http::HeaderMap;

use super::{is_plain, names_json};

/// Whether a body with the content type JSON is not a complete document, for example cut short.
///
/// A compressed body cannot be read, and counts as complete.
#[must_use]
pub fn is_broken_json(headers: &HeaderMap, body: &[u8]) -> bool {
    if !names_json(headers) || !is_plain(headers) {
        return false;
    }
    !JsonOutline::of([body]).is_whole()
}

/// Follows the brackets and strings of a JSON document, piece by piece, to tell whether it is
/// complete.
///
/// The outline counts brackets outside of strings, and parses nothing: that is enough to
/// detect half a document, and costs little.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonOutline {
    first: Option<u8>,
    last: Option<u8>,
    /// The number of objects and lists that are open. The number is -1, and stays so, after a
    /// surplus closing bracket.
    open: i64,
    in_string: bool,
    /// Whether the next byte of the string is escaped.
    is_escaped: bool,
    bytes: u64,
}

impl JsonOutline {
    /// The outline of a document in these pieces.
    pub fn of<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut outline = Self::default();
        chunks.into_iter().for_each(|chunk| outline.push(chunk));
        outline
    }

    /// Reads the next piece of the document.
    pub fn push(&mut self, piece: &[u8]) {
        // A byte order mark may precede the document.
        let is_blank = |byte: &u8| byte.is_ascii_whitespace() || b"\xEF\xBB\xBF".contains(byte);
        if self.first.is_none() {
            self.first = piece.iter().copied().find(|byte| !is_blank(byte));
        }
        let mut backwards = piece.iter().rev().copied();
        let last = backwards.find(|byte| !byte.is_ascii_whitespace());
        self.last = last.or(self.last);
        self.bytes += piece.len() as u64;
        self.count(piece);
    }

    fn count(&mut self, mut rest: &[u8]) {
        while !rest.is_empty() {
            if std::mem::take(&mut self.is_escaped) {
                rest = &rest[1..];
                continue;
            }
            let found = match self.in_string {
                true => memchr::memchr2(b'"', b'\\', rest),
                false => rest
                    .iter()
                    .position(|byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']')),
            };
            let Some(at) = found else { return };
            match rest[at] {
                b'"' => self.in_string = !self.in_string,
                b'\\' => self.is_escaped = true,
                b'{' | b'[' if self.open >= 0 => self.open += 1,
                b'}' | b']' if self.open >= 0 => self.open -= 1,
                _ => {}
            }
            rest = &rest[at + 1..];
        }
    }

    /// The number of the body's bytes that were read.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the JSON document read so far is complete; an empty one is.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let Some(first) = self.first else {
            return true;
        };
        let closes = match first {
            b'{' => b'}',
            b'[' => b']',
            b'"' => b'"',
            // The last byte of `true`, `false` or `null`.
            b't' | b'f' => b'e',
            b'n' => b'l',
            _ => return matches!(first, b'-' | b'0'..=b'9'),
        };
        self.last == Some(closes) && self.open == 0 && !self.in_string
    }
}
