//! A walk over JSON that refuses what `serde_json` refuses, and skips long strings faster.
//!
//! Beside [`Scanner`](super::json::Scanner), which is lenient in what it skips, the walk checks each
//! value: control characters, escapes, numbers and brackets. It makes no error: whoever needs one,
//! or has a document that is nested deeper than the walk goes, asks `serde_json`. Whether the bytes
//! are UTF-8 is not checked.

/// The number of levels within a skipped value: one bit for each says if it is an object.
const MAX_DEPTH: usize = u128::BITS as usize;

/// The length of a string from which on it is skipped by blocks. Most strings are shorter, and end
/// before a block does.
const LONG: usize = 64;

/// The length of a block, and the byte behind it.
const BLOCK: usize = 64;
const LANES: usize = 16;

/// A walk over the bytes of a document. `None` is invalid JSON, or JSON that is nested too deeply.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
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

    /// Reads `byte`, and the white space before it, if it comes next.
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

    /// Reads a string from behind its opening quote. The result is the string if it has no escape;
    /// a long one counts as if it had one.
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
                // After a block that needs a closer look, its bytes are read as those of a short
                // string are.
                blocks_from = self.at + BLOCK;
            }
            if let Some(word) = self.bytes[self.at..].first_chunk::<8>() {
                let word = u64::from_le_bytes(*word);
                let quote = word ^ (ONES * b'"' as u64);
                let backslash = word ^ (ONES * b'\\' as u64);
                let control = word.wrapping_sub(ONES * 0x20) & !word;
                // Only the lowest set bit is reliable: it marks the first byte that stands for more
                // than itself.
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

    /// Skips blocks of a string, as long as they have nothing but characters and common escapes.
    #[inline(never)]
    fn blocks(&mut self) {
        while let Some(block) = self.bytes[self.at..].first_chunk() {
            if matches!(block[0], b'"' | ..0x20) || !is_common(block) {
                break;
            }
            // The escape that begins with the last byte is part of the next block.
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

    /// Reads the next byte if it is one of these.
    fn next_is(&mut self, one_of: &[u8]) -> bool {
        let next = self.bytes.get(self.at);
        let found = next.is_some_and(|byte| one_of.contains(byte));
        self.at += usize::from(found);
        found
    }

    /// Reads one or more digits, and returns their number.
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
            // Behind a value: the arrays and objects that end here, and the comma after them.
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

/// Whether each byte of a block within a string is a character, or part of an escape other than
/// `\\`, `\u`, `\b`, `\f` and `\/`. Such an escape is one byte behind a backslash, whatever stands
/// before, so that the bytes are judged all at once. The first byte is judged by the caller.
#[inline]
fn is_common(block: &[u8; BLOCK + 1]) -> bool {
    // The compiler makes vector instructions of the loop over the lanes.
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
