//! A validating walk over JSON that skips long strings faster than `serde_json` does.
//!
//! The walk refuses every document that `serde_json` refuses to parse as `IgnoredAny`: it checks
//! control characters, escapes, numbers and brackets also in the values that it skips, unlike
//! [`Scanner`](super::json_scanner::Scanner). The walk also refuses documents that are nested too deeply.
//! It does not say why it refuses a document: the caller then reads the document with
//! `serde_json`. The walk does not check that the bytes are UTF-8.

/// The most non-empty arrays and objects that a skipped value may nest in each other.
///
/// [`ValidatingWalk::skip`] keeps one bit for each open array or object, set for an object.
const MAX_DEPTH: usize = u128::BITS as usize;

/// The number of bytes of a string after which [`ValidatingWalk::string`] skips whole blocks.
///
/// Most strings are shorter, and would end within their first block.
const LONG: usize = 64;

/// The length of a block of a string, in bytes.
const BLOCK: usize = 64;
/// The number of bytes of a block that one vector instruction checks.
const LANES: usize = 16;

/// A walk over the bytes of a JSON document.
///
/// A method returns `None` if the JSON is invalid, or nested too deeply. The walk must end then.
#[derive(Debug)]
pub(super) struct ValidatingWalk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> ValidatingWalk<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(super) const fn position(&self) -> usize {
        self.at
    }

    /// Whether only white space follows.
    pub(super) fn is_at_end(&self) -> bool {
        let rest = &self.bytes[self.at..];
        rest.iter()
            .all(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
    }

    /// Skips white space, and returns the next byte without reading it.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            match *self.bytes.get(self.at)? {
                b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                byte => return Some(byte),
            }
        }
    }

    /// Skips white space, and reads the next byte if it is `byte`.
    ///
    /// Returns whether it is `byte`; `None` if only white space is left.
    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> Option<bool> {
        let found = self.peek()? == byte;
        self.at += usize::from(found);
        Some(found)
    }

    /// Reads a key and its colon, and returns the key as [`string`](Self::string) does.
    #[inline]
    pub(super) fn key(&mut self) -> Option<Option<&'a [u8]>> {
        if !self.take(b'"')? {
            return None;
        }
        let key = self.string()?;
        self.take(b':')?.then_some(key)
    }

    /// Reads a string from behind its opening quote.
    ///
    /// The inner result is the string as written, without its quotes; `None` if the string has an
    /// escape, or at least [`LONG`] bytes.
    #[inline]
    pub(super) fn string(&mut self) -> Option<Option<&'a [u8]>> {
        const ONES: u64 = u64::MAX / 255;

        let start = self.at;
        let mut blocks_from = start + LONG;
        let mut plain = true;
        loop {
            if self.at >= blocks_from {
                self.blocks();
                plain = false;
                // `blocks` has stopped at a block that it cannot skip, or at fewer bytes than a
                // block: this loop reads the next `BLOCK` bytes itself.
                blocks_from = self.at + BLOCK;
            }
            if let Some(word) = self.bytes[self.at..].first_chunk::<8>() {
                let word = u64::from_le_bytes(*word);
                let quote = word ^ (ONES * b'"' as u64);
                let backslash = word ^ (ONES * b'\\' as u64);
                let control = word.wrapping_sub(ONES * 0x20) & !word;
                // Only the lowest set bit is reliable: it marks the first byte that is a quote, a
                // backslash or a control character.
                let hits = (control
                    | quote.wrapping_sub(ONES) & !quote
                    | backslash.wrapping_sub(ONES) & !backslash)
                    & (ONES << 7);
                if hits == 0 {
                    self.at += 8;
                    continue;
                }
                self.at += hits.trailing_zeros() as usize / 8;
            }
            match *self.bytes.get(self.at)? {
                b'"' => {
                    let text = &self.bytes[start..self.at];
                    self.at += 1;
                    return Some(plain.then_some(text));
                }
                b'\\' => {
                    plain = false;
                    self.escape()?;
                }
                ..0x20 => return None,
                _ => self.at += 1,
            }
        }
    }

    #[inline]
    fn escape(&mut self) -> Option<()> {
        self.at += match self.bytes.get(self.at + 1)? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
            b'u' => {
                let digits = self.bytes.get(self.at + 2..self.at + 6)?;
                if !digits.iter().all(u8::is_ascii_hexdigit) {
                    return None;
                }
                6
            }
            _ => return None,
        };
        Some(())
    }

    /// Skips blocks of a string that [have only common](has_only_common) characters.
    #[inline(never)]
    fn blocks(&mut self) {
        while let Some(block) = self.bytes[self.at..].first_chunk() {
            if matches!(block[0], b'"' | ..0x20) || !has_only_common(block) {
                break;
            }
            // An escape that begins with the last byte is read as the start of the next block.
            self.at += BLOCK + usize::from(block[BLOCK] != b'\\');
        }
    }

    fn number(&mut self) -> Option<()> {
        self.next_is(b"-");
        let zero = self.bytes.get(self.at) == Some(&b'0');
        if self.digits()? > 1 && zero {
            return None;
        }
        if self.next_is(b".") {
            self.digits()?;
        }
        if self.next_is(b"eE") {
            self.next_is(b"+-");
            self.digits()?;
        }
        Some(())
    }

    /// Reads the next byte if it is in `one_of`; returns whether it is.
    fn next_is(&mut self, one_of: &[u8]) -> bool {
        let next = self.bytes.get(self.at);
        let found = next.is_some_and(|byte| one_of.contains(byte));
        self.at += usize::from(found);
        found
    }

    /// Reads one or more digits, and returns how many; `None` if there is no digit.
    fn digits(&mut self) -> Option<usize> {
        let rest = self.bytes[self.at..].iter();
        let len = rest.take_while(|byte| byte.is_ascii_digit()).count();
        self.at += len;
        (len > 0).then_some(len)
    }

    fn literal(&mut self, word: &[u8]) -> Option<()> {
        let found = self.bytes[self.at..].starts_with(word);
        self.at += word.len();
        found.then_some(())
    }

    /// Reads the next value, of any type, and discards it.
    pub(super) fn skip(&mut self) -> Option<()> {
        let mut objects = 0_u128;
        let mut depth = 0;
        loop {
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    self.string()?;
                }
                open @ (b'{' | b'[') => {
                    self.at += 1;
                    let object = open == b'{';
                    if !self.take(if object { b'}' } else { b']' })? {
                        if depth == MAX_DEPTH {
                            return None;
                        }
                        depth += 1;
                        objects = objects << 1 | u128::from(object);
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                b'n' => self.literal(b"null")?,
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                _ => self.number()?,
            }
            // Behind a value: close the arrays and objects that end here, and read the comma and
            // the key of the next value.
            loop {
                if depth == 0 {
                    return Some(());
                }
                let object = objects & 1 == 1;
                match self.peek()? {
                    b',' => {
                        self.at += 1;
                        if object {
                            self.key()?;
                        }
                        break;
                    }
                    b'}' if object => {}
                    b']' if !object => {}
                    _ => return None,
                }
                self.at += 1;
                depth -= 1;
                objects >>= 1;
            }
        }
    }
}

/// Whether a block within a string has only plain characters and the simplest escapes. These are
/// `\n`, `\t`, `\r` and `\"`.
///
/// The byte before each byte suffices to check it, because in a block without `\\` every backslash
/// begins an escape. So all bytes are checked at once. The caller checks the first byte.
#[inline]
fn has_only_common(block: &[u8; BLOCK + 1]) -> bool {
    // The compiler turns the inner loop into vector instructions.
    let mut odd = [0_u8; LANES];
    let before = block[..BLOCK].chunks_exact(LANES);
    for (before, bytes) in before.zip(block[1..].chunks_exact(LANES)) {
        for ((odd, &before), &byte) in odd.iter_mut().zip(before).zip(bytes) {
            let unlike = (byte == b'"') ^ (before == b'\\');
            let common = (byte == b'n') | (byte == b't') | (byte == b'r');
            *odd |= u8::from((unlike & !common) | (byte < b' '));
        }
    }
    u128::from_ne_bytes(odd) == 0
}
