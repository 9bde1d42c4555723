//! The part of the scanner that reads the tokens of a JSON document.

use memchr::memchr2;

use super::{Malformed, Scan, scanner::Scanner};

/// The number of levels down to which the brackets of a skipped value are matched by
/// kind.
const KINDS: usize = u128::BITS as usize;

impl<'a> Scanner<'a> {
    /// Skips white space, and returns the next byte without reading it.
    #[inline(always)]
    pub(super) fn peek(&mut self) -> Scan<u8> {
        loop {
            match self.bytes.get(self.at) {
                Some(&byte) if byte > b' ' => return Ok(byte),
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                _ => return Err(Malformed),
            }
        }
    }

    #[inline(always)]
    pub(super) fn expect(&mut self, byte: u8) -> Scan<()> {
        if self.peek()? != byte {
            return Err(Malformed);
        }
        self.at += 1;
        Ok(())
    }

    /// Reads a string from behind its opening quote.
    ///
    /// The result is the string as written, and whether it contains escapes.
    #[inline(always)]
    pub(super) fn string(&mut self) -> Scan<(&'a [u8], bool)> {
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
    pub(super) fn literal(&mut self, word: &[u8]) -> Scan<()> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(Malformed);
        }
        self.at += word.len();
        Ok(())
    }

    #[inline(always)]
    pub(super) fn number(&mut self) -> Scan<&'a [u8]> {
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
    pub(super) fn skip_nested(&mut self) -> Scan<()> {
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

/// Finds the position of the first `"` or `\` in `bytes`.
///
/// Most strings of a frame are short: a search of eight bytes at a time beats the set-up
/// of a vector search, which takes over for long strings.
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
        // The lowest set high bit marks the first zero byte; higher bits may be wrong.
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
