use super::{
    Malformed, Scan,
    text::{Text, decode},
};

/// As deep as it is walked, which is as deep as `serde_json` goes.
const MAX_DEPTH: usize = 127;

/// Where the scan stands. Each method reads one value, whatever its type, and leaves the scanner
/// behind it.
#[derive(Debug)]
pub(crate) struct Scanner<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
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
    pub(crate) fn first(&mut self) -> Scan<u8> {
        self.peek()
    }

    /// Goes on in an array from `at`, which lies right behind one of its elements.
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

    /// Walks the object that `bytes` hold; anything else is malformed.
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

    /// Walks an object; `member` gets each key, decoded, and must read its value. False if the
    /// value was none.
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

    /// Walks an array; `element` must read each value. False if the value was none.
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

    /// Reads any value.
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

    /// Reads any value and answers its bytes.
    pub(crate) fn span(&mut self) -> Scan<&'a [u8]> {
        self.peek()?;
        let start = self.at;
        self.skip()?;
        Ok(&self.bytes[start..self.at])
    }

    /// A string; `None` if the value was none.
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

    /// A number without sign, fraction and exponent that fits.
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

    /// Whether the value is a string, array or object that is not empty.
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

    /// Whether the value of a top-level `error` key reports one: an object, or some text.
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
