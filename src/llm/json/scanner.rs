use super::{
    Malformed, Scan,
    text::{Text, decode},
};

/// The greatest depth to which a document is walked, the same as in `serde_json`.
const MAX_DEPTH: usize = 127;

/// A forward scanner over the bytes of a JSON document.
///
/// Each method of the scanner reads one value of any type, and leaves the scanner behind
/// that value.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    depth: usize,
}

impl<'a> Scanner<'a> {
    /// Creates a scanner at the start of `bytes`.
    #[inline]
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        let (at, depth) = (0, 0);
        Self { bytes, at, depth }
    }

    /// The number of the document's bytes that were read.
    pub(crate) const fn position(&self) -> usize {
        self.at
    }

    /// Returns the first byte of the next value, without reading it.
    pub(crate) fn first(&mut self) -> Scan<u8> {
        self.peek()
    }

    /// Resumes a walk of an array at the offset `at`, directly behind one of its
    /// elements.
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
    /// The result is `false` if the value is no object.
    #[inline]
    pub(crate) fn object(
        &mut self,
        mut member: impl FnMut(&mut Self, &[u8]) -> Scan<()>,
    ) -> Scan<bool> {
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

    /// Walks the next value as an array; `element` must read each value in it.
    ///
    /// The result is `false` if the value is no array.
    #[inline]
    pub(crate) fn array(&mut self, mut element: impl FnMut(&mut Self) -> Scan<()>) -> Scan<bool> {
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
    pub(crate) fn skip(&mut self) -> Scan<()> {
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

    /// Reads the next value as a string; `None` if it is no string.
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

    /// Reads the next value as a `u64`; `None` if it is no unsigned integer that fits.
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

    /// Reads the next value, and returns whether it is a non-empty string, array or
    /// object.
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

    /// Reads the value of an `error` key, and returns whether it reports an error: an
    /// object, or a text.
    pub(crate) fn is_error(&mut self) -> Scan<bool> {
        match self.peek()? {
            b'{' => self.skip().map(|()| true),
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
}
