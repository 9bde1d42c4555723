//! A forward scanner of JSON that skips the values it does not need.
//!
//! Every valid document gives the same values as with `serde_json`. Skipped values are checked
//! for structure only, so a broken number or a bad escape in them goes unnoticed. Skipped
//! values may be nested to any depth: with a limit, one deeply nested value would make the rest
//! of the document unreadable.
//!
//! The scanner finds each token as it needs it, and builds no tree.

use std::borrow::Cow;

use memchr::memchr2;

/// The error of a text that is not JSON, or that is nested too deeply in its walked part.
#[derive(Debug)]
pub struct Malformed;

/// What reading a part of a JSON document returns.
pub type Scan<T> = Result<T, Malformed>;

/// The number of nested levels that the scanner enters: `serde_json` accepts as many, and
/// refuses one more.
const MAX_DEPTH: usize = 127;

/// The number of levels of a skipped value in which a closing bracket must fit its opening one.
///
/// In deeper levels any closing bracket ends any open one.
const KINDS: usize = u128::BITS as usize;

/// A forward scanner over the bytes of a JSON document.
///
/// Each method that reads a value accepts one of any type, and leaves the scanner behind that
/// value.
#[derive(Debug)]
pub struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    /// Whether a skipped value is nested more deeply than the scanner enters.
    is_deep: bool,
}

impl<'a> Scanner<'a> {
    /// Creates a scanner at the start of `bytes`.
    #[inline]
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            depth: 0,
            is_deep: false,
        }
    }

    /// Whether a value that was skipped so far is nested more deeply than the scanner enters.
    pub(crate) const fn is_deep(&self) -> bool {
        self.is_deep
    }

    /// The offset of the scanner in the document: the number of bytes that it has passed.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.at
    }

    /// Resumes the walk of an array at the offset `at`, directly behind one of its elements.
    ///
    /// The scanner must stand at the array's opening bracket; `element` must read each later
    /// value.
    pub(crate) fn resume(
        &mut self,
        at: usize,
        mut element: impl FnMut(&mut Self) -> Scan<()>,
    ) -> Scan<()> {
        self.enter()?;
        self.at = at;
        loop {
            match self.peek()? {
                b',' => self.at += 1,
                b']' => break,
                _ => return Err(Malformed),
            }
            element(self)?;
        }
        self.leave();
        Ok(())
    }

    /// Walks the object in `bytes`; any other document is malformed.
    #[inline]
    pub(crate) fn document(
        bytes: &'a [u8],
        member: impl FnMut(&mut Self, &[u8]) -> Scan<()>,
    ) -> Scan<()> {
        let mut scanner = Self::new(bytes);
        if !scanner.object(member)? {
            return Err(Malformed);
        }
        if scanner.bytes[scanner.at..].trim_ascii_start().is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }

    /// Walks the next value as an object; `member` gets each decoded key, and must read
    /// its value.
    ///
    /// The result is `false` if the value is not an object.
    #[inline]
    pub fn object(&mut self, mut member: impl FnMut(&mut Self, &[u8]) -> Scan<()>) -> Scan<bool> {
        if self.peek()? != b'{' {
            self.skip()?;
            return Ok(false);
        }
        self.enter()?;
        if self.peek()? != b'}' {
            loop {
                self.expect(b'"')?;
                let (raw, escaped) = self.string()?;
                self.expect(b':')?;
                let decoded;
                let key = if escaped {
                    decoded = decode(raw);
                    &*decoded
                } else {
                    raw
                };
                member(self, key)?;
                match self.peek()? {
                    b',' => self.at += 1,
                    b'}' => break,
                    _ => return Err(Malformed),
                }
            }
        }
        self.leave();
        Ok(true)
    }

    /// Reads the values of some keys of the object in `bytes`, as the document has them.
    ///
    /// Of two equal keys the last counts. A document that is not an object is malformed.
    pub(crate) fn members<const N: usize>(
        bytes: &'a [u8],
        names: [&[u8]; N],
    ) -> Scan<[Option<&'a [u8]>; N]> {
        let mut values = [None; N];
        Self::document(bytes, |json, key| {
            match names.iter().position(|name| *name == key) {
                Some(at) => values[at] = Some(json.span()?),
                None => json.skip()?,
            }
            Ok(())
        })?;
        Ok(values)
    }

    /// Walks the next value as an array; `element` must read each value in it.
    ///
    /// The result is `false` if the value is not an array.
    #[inline]
    pub fn array(&mut self, mut element: impl FnMut(&mut Self) -> Scan<()>) -> Scan<bool> {
        if self.peek()? != b'[' {
            self.skip()?;
            return Ok(false);
        }
        self.enter()?;
        if self.peek()? != b']' {
            loop {
                element(self)?;
                match self.peek()? {
                    b',' => self.at += 1,
                    b']' => break,
                    _ => return Err(Malformed),
                }
            }
        }
        self.leave();
        Ok(true)
    }

    /// Reads the next value, of any type, and discards it.
    #[inline(always)]
    pub fn skip(&mut self) -> Scan<()> {
        match self.peek()? {
            b'"' => {
                self.at += 1;
                self.string().map(drop)
            }
            b'{' | b'[' => self.skip_nested(),
            b'n' => self.literal(b"null"),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            _ => self.number().map(drop),
        }
    }

    /// Reads the next value, of any type, and returns its bytes.
    pub(crate) fn span(&mut self) -> Scan<&'a [u8]> {
        self.peek()?;
        let start = self.at;
        self.skip()?;
        Ok(&self.bytes[start..self.at])
    }

    /// Reads the next value as a string; `None` if it is not a string.
    #[inline]
    pub(crate) fn text(&mut self) -> Scan<Option<Text<'a>>> {
        if self.peek()? != b'"' {
            self.skip()?;
            return Ok(None);
        }
        self.at += 1;
        let (raw, escaped) = self.string()?;
        Ok(Some(Text { raw, escaped }))
    }

    /// Reads the next value as a `u64`; `None` if it is not an unsigned integer that fits.
    #[inline]
    pub(crate) fn integer(&mut self) -> Scan<Option<u64>> {
        if !matches!(self.peek()?, b'-' | b'0'..=b'9') {
            self.skip()?;
            return Ok(None);
        }
        let digits = self.number()?;
        Ok(digits.iter().try_fold(0_u64, |value, digit| match digit {
            b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
            _ => None,
        }))
    }

    /// Reads the next value as a count; `None` if it is not a number, or a negative one.
    ///
    /// Some upstreams write counts as floats, as `7000.0` or `7e3`. A fraction is rounded up, and a
    /// count of more than 64 bits is the largest one.
    #[inline]
    pub(crate) fn count(&mut self) -> Scan<Option<u64>> {
        if !matches!(self.peek()?, b'-' | b'0'..=b'9') {
            self.skip()?;
            return Ok(None);
        }
        let number = self.number()?;
        let whole = number.iter().try_fold(0_u64, |value, digit| match digit {
            b'0'..=b'9' => value.checked_mul(10)?.checked_add(u64::from(digit - b'0')),
            _ => None,
        });
        Ok(whole.or_else(|| float_count(number)))
    }

    /// Reads the next value; `true` if it is a string, array or object that is not empty.
    #[inline]
    pub(crate) fn filled(&mut self) -> Scan<bool> {
        match self.peek()? {
            b'"' => {
                self.at += 1;
                Ok(!self.string()?.0.is_empty())
            }
            b'{' | b'[' => {
                let start = self.at;
                self.at += 1;
                let filled = !matches!(self.peek()?, b'}' | b']');
                self.at = start;
                self.skip_nested()?;
                Ok(filled)
            }
            _ => self.skip().map(|()| false),
        }
    }

    /// Reads the value of an `error` key, and returns whether it is an error. An error is a string
    /// that is not empty, or an object that is empty or has a field that is not null.
    ///
    /// An object that has fields, all of them null, is not an error: batch jobs send such objects.
    pub(crate) fn is_error(&mut self) -> Scan<bool> {
        match self.peek()? {
            b'{' => {
                let (mut is_empty, mut says) = (true, false);
                self.object(|json, _| {
                    is_empty = false;
                    says |= json.span()? != b"null";
                    Ok(())
                })?;
                Ok(is_empty || says)
            }
            b'"' => self.filled(),
            _ => self.skip().map(|()| false),
        }
    }

    #[inline(always)]
    fn enter(&mut self) -> Scan<()> {
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            Err(Malformed)
        } else {
            Ok(())
        }
    }

    #[inline(always)]
    fn leave(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    /// Skips white space, and returns the next byte without reading it.
    #[inline(always)]
    pub fn peek(&mut self) -> Scan<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(&byte) if byte > b' ' => return Ok(byte),
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                _ => return Err(Malformed),
            }
        }
    }

    #[inline(always)]
    fn expect(&mut self, byte: u8) -> Scan<()> {
        if self.peek()? != byte {
            return Err(Malformed);
        }
        self.at += 1;
        Ok(())
    }

    /// Reads a string from behind its opening quote.
    ///
    /// The result is the string as written, without its quotes, and whether it contains
    /// escapes.
    #[inline(always)]
    fn string(&mut self) -> Scan<(&'a [u8], bool)> {
        let start = self.at;
        let mut escaped = false;
        loop {
            self.at += quote_or_backslash(&self.bytes[self.at..]).ok_or(Malformed)?;
            if self.bytes[self.at] == b'"' {
                let raw = &self.bytes[start..self.at];
                self.at += 1;
                return Ok((raw, escaped));
            }
            escaped = true;
            self.at += 2;
            if self.at >= self.bytes.len() {
                return Err(Malformed);
            }
        }
    }

    #[inline(always)]
    fn literal(&mut self, word: &[u8]) -> Scan<()> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(Malformed);
        }
        self.at += word.len();
        Ok(())
    }

    #[inline(always)]
    fn number(&mut self) -> Scan<&'a [u8]> {
        let rest = &self.bytes[self.at..];
        let len = rest
            .iter()
            .position(|byte| !matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E'))
            .unwrap_or(rest.len());
        if len == 0 {
            return Err(Malformed);
        }
        self.at += len;
        Ok(&rest[..len])
    }

    /// Skips an array or object without recursion.
    ///
    /// One bit per level holds the kind of its closing bracket; levels beyond the bits
    /// are only counted.
    fn skip_nested(&mut self) -> Scan<()> {
        let mut objects = 0_u128;
        let mut depth = 0_usize;
        let room = MAX_DEPTH.saturating_sub(self.depth);
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'"' => drop(self.string()?),
                b'{' | b'[' => {
                    depth += 1;
                    self.is_deep |= depth > room;
                    if depth <= KINDS {
                        objects = objects << 1 | u128::from(byte == b'{');
                    }
                }
                b'}' | b']' => {
                    if depth <= KINDS {
                        if (objects & 1 == 1) != (byte == b'}') {
                            return Err(Malformed);
                        }
                        objects >>= 1;
                    }
                    depth -= 1;
                    if depth == 0 {
                        return Ok(());
                    }
                }
                _ => {}
            }
        }
        Err(Malformed)
    }
}

/// Finds the position of the first `"` or `\` in `bytes`.
///
/// Most strings of a frame are short: a search of eight bytes at a time is faster than the
/// set-up of a vector search, which takes over after 64 bytes.
#[inline(always)]
fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::MAX / 255;
    const HIGH: u64 = ONES << 7;
    const SHORT: usize = 64;

    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk::<8>() {
        let word = u64::from_le_bytes(*word);
        let quote = word ^ (ONES * b'"' as u64);
        let backslash = word ^ (ONES * b'\\' as u64);
        // Only the lowest set bit is reliable: it marks the first byte that is a quote or a
        // backslash.
        let hits =
            (quote.wrapping_sub(ONES) & !quote | backslash.wrapping_sub(ONES) & !backslash) & HIGH;
        if hits != 0 {
            return Some(at + hits.trailing_zeros() as usize / 8);
        }
        at += 8;
        if at == SHORT {
            return memchr2(b'"', b'\\', &bytes[at..]).map(|found| at + found);
        }
    }
    bytes[at..]
        .iter()
        .position(|byte| matches!(byte, b'"' | b'\\'))
        .map(|found| at + found)
}

/// A string as a JSON document has it: without its quotes, with its escapes.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    raw: &'a [u8],
    escaped: bool,
}

impl<'a> Text<'a> {
    /// Reads the value in `span` as a string; `None` if it is not a string.
    pub(crate) fn of(span: &'a [u8]) -> Option<Self> {
        Scanner::new(span).text().ok()?
    }

    /// Reads a string from behind its opening quote; `None` if its closing quote is missing.
    #[inline]
    pub(crate) fn before_quote(bytes: &'a [u8]) -> Option<Self> {
        let (raw, escaped) = Scanner::new(bytes).string().ok()?;
        Some(Self { raw, escaped })
    }

    /// Returns the string as the document has it.
    #[inline]
    pub(crate) const fn raw(self) -> &'a [u8] {
        self.raw
    }

    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.raw.is_empty()
    }

    /// Returns the text of the string, with its escapes decoded.
    #[inline]
    pub(crate) fn decoded(self) -> Cow<'a, [u8]> {
        if self.escaped {
            decode(self.raw)
        } else {
            Cow::Borrowed(self.raw)
        }
    }

    #[inline]
    pub(crate) fn is(self, word: &[u8]) -> bool {
        if self.escaped {
            *decode(self.raw) == *word
        } else {
            self.raw == word
        }
    }
}

/// Decodes the escapes of a JSON string.
///
/// An invalid string, for example one with an unknown escape, is returned as written. Its backslash
/// makes it unequal to every known word.
#[cold]
fn decode(raw: &[u8]) -> Cow<'_, [u8]> {
    let mut quoted = Vec::with_capacity(raw.len() + 2);
    quoted.push(b'"');
    quoted.extend_from_slice(raw);
    quoted.push(b'"');
    match serde_json::from_slice::<String>(&quoted) {
        Ok(text) => Cow::Owned(text.into_bytes()),
        Err(_) => Cow::Borrowed(raw),
    }
}
/// The count that a number is which is not a plain integer of 64 bits; `None` if it is negative.
#[cold]
fn float_count(number: &[u8]) -> Option<u64> {
    let value: f64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    // The conversion saturates.
    (value >= 0.0).then(|| value.ceil() as u64)
}
