//! A forward scanner of JSON objects: it walks the keys that a judge asks for and skips the rest.
//!
//! Every valid document reads as `serde_json` reads it. What is skipped is checked for structure
//! only, so a broken number or a bad escape in there goes unnoticed: a judge may be lenient. It may
//! be nested to any depth, too, or a few brackets where nobody looks would hide all the rest.

use std::borrow::Cow;

use memchr::memchr2;

/// As deep as it is walked, which is as deep as `serde_json` goes.
const MAX_DEPTH: usize = 127;

/// How many levels of what is skipped are told apart.
const KINDS: usize = u128::BITS as usize;

/// Not JSON, or walked too deeply.
#[derive(Debug)]
pub(crate) struct Malformed;

pub(crate) type Read<T> = Result<T, Malformed>;

/// A string as it is written in the document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    raw: &'a [u8],
    escaped: bool,
}

/// Where the scan stands. Each method reads one value, whatever its type, and leaves the scanner
/// behind it.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

impl<'a> Scanner<'a> {
    /// At the first of `bytes`.
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        let (at, depth) = (0, 0);
        Self { bytes, at, depth }
    }

    /// How many bytes were read.
    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    /// The first byte of the next value, which is not yet read.
    pub(crate) fn first(&mut self) -> Read<u8> {
        self.peek()
    }

    /// Goes on in an array from `at`, which lies right behind one of its elements.
    pub(crate) fn resume(
        &mut self,
        at: usize,
        mut element: impl FnMut(&mut Self) -> Read<()>,
    ) -> Read<()> {
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

    /// Walks the object that `bytes` hold; anything else is malformed.
    #[inline]
    pub(crate) fn document(
        bytes: &'a [u8],
        member: impl FnMut(&mut Self, &[u8]) -> Read<()>,
    ) -> Read<()> {
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

    /// Walks an object; `member` gets each key, decoded, and must read its value. False if the
    /// value was none.
    #[inline]
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &[u8]) -> Read<()>,
    ) -> Read<bool> {
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

    /// Walks an array; `element` must read each value. False if the value was none.
    #[inline]
    pub(crate) fn array(&mut self, mut element: impl FnMut(&mut Self) -> Read<()>) -> Read<bool> {
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

    /// Reads any value.
    #[inline(always)]
    pub(crate) fn skip(&mut self) -> Read<()> {
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

    /// Reads any value and answers its bytes.
    pub(crate) fn span(&mut self) -> Read<&'a [u8]> {
        self.peek()?;
        let start = self.at;
        self.skip()?;
        Ok(&self.bytes[start..self.at])
    }

    /// A string; `None` if the value was none.
    #[inline]
    pub(crate) fn text(&mut self) -> Read<Option<Text<'a>>> {
        if self.peek()? != b'"' {
            self.skip()?;
            return Ok(None);
        }
        self.at += 1;
        let (raw, escaped) = self.string()?;
        Ok(Some(Text { raw, escaped }))
    }

    /// A number without sign, fraction and exponent that fits.
    #[inline]
    pub(crate) fn integer(&mut self) -> Read<Option<u64>> {
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

    /// Whether the value is a string, array or object that is not empty.
    #[inline]
    pub(crate) fn filled(&mut self) -> Read<bool> {
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

    /// Whether the value of a top-level `error` key reports one: an object, or some text.
    pub(crate) fn is_error(&mut self) -> Read<bool> {
        match self.peek()? {
            b'{' => self.skip().map(|()| true),
            b'"' => self.filled(),
            _ => self.skip().map(|()| false),
        }
    }

    /// The next byte that is not white space, not yet read.
    #[inline(always)]
    fn peek(&mut self) -> Read<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(&byte) if byte > b' ' => return Ok(byte),
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                _ => return Err(Malformed),
            }
        }
    }

    #[inline(always)]
    fn expect(&mut self, byte: u8) -> Read<()> {
        if self.peek()? != byte {
            return Err(Malformed);
        }
        self.at += 1;
        Ok(())
    }

    #[inline(always)]
    fn enter(&mut self) -> Read<()> {
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

    /// Reads a string from behind its opening quote; answers it raw, and whether it has escapes.
    #[inline(always)]
    fn string(&mut self) -> Read<(&'a [u8], bool)> {
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
    fn literal(&mut self, word: &[u8]) -> Read<()> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(Malformed);
        }
        self.at += word.len();
        Ok(())
    }

    #[inline(always)]
    fn number(&mut self) -> Read<&'a [u8]> {
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

    /// Skips an array or object without recursion: a bit per level tells which bracket closes it;
    /// what is deeper than there are bits is only counted.
    fn skip_nested(&mut self) -> Read<()> {
        let mut objects = 0_u128;
        let mut depth = 0_usize;
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'"' => drop(self.string()?),
                b'{' | b'[' => {
                    depth += 1;
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

impl<'a> Text<'a> {
    #[inline]
    pub(crate) const fn is_empty(self) -> bool {
        self.raw.is_empty()
    }

    /// The text itself.
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

/// Where the first `"` or `\` stands. Most strings of a frame are short: eight bytes at a time
/// beats the set-up of a vector search, which takes over for the long ones.
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
        // The lowest high bit that is set marks the first zero byte; those above may be wrong.
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

/// Decodes escapes; text that cannot be decoded stays as it is and so equals no known word.
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
