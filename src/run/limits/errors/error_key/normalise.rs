use super::{volatile, words::word_end};

/// Stands for what was taken out. In no UTF-8, so no message contains it.
pub(crate) const PLACEHOLDER: u8 = 0xfe;

/// How much of a message is read at most, in bytes: volatile parts may be
/// longer than what stands for them.
const READ: usize = 8192;

/// Hands the bytes of `message` to `emit`, without its volatile parts, until
/// that answers `false`.
pub(crate) fn normalise(message: &str, emit: impl FnMut(u8) -> bool) {
    let mut end = message.len().min(READ);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    let mut normaliser = Normaliser {
        text: &message[..end],
        emit,
        gap: false,
        empty: true,
    };
    let mut at = Some(0);
    while let Some(from) = at.filter(|&from| from < end) {
        at = normaliser.step(from);
    }
}

struct Normaliser<'a, E> {
    text: &'a str,
    emit: E,
    /// White space was read and not yet handed on: at the end it is not.
    gap: bool,
    empty: bool,
}

impl<E: FnMut(u8) -> bool> Normaliser<'_, E> {
    /// Reads one part, and answers where the next begins; `None` if enough was
    /// handed on.
    fn step(&mut self, at: usize) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let first = bytes[at];
        if let Some(end) = volatile::at(bytes, at) {
            self.put(PLACEHOLDER)?;
            return Some(end);
        }
        if first.is_ascii_alphabetic() {
            return self.word(at);
        }
        if !first.is_ascii() {
            return self.wide(at);
        }
        if first.is_ascii_whitespace() {
            self.gap = true;
        } else {
            self.put(first)?;
        }
        Some(at + 1)
    }

    /// A word that stays: of its digits remains that there were some.
    fn word(&mut self, at: usize) -> Option<usize> {
        let bytes = self.text.as_bytes();
        let end = word_end(bytes, at);
        let mut in_digits = false;
        for &byte in &bytes[at..end] {
            if !byte.is_ascii_digit() {
                self.put(byte.to_ascii_lowercase())?;
            } else if !in_digits {
                self.put(PLACEHOLDER)?;
            }
            in_digits = byte.is_ascii_digit();
        }
        Some(end)
    }

    /// One character that is not ASCII.
    fn wide(&mut self, at: usize) -> Option<usize> {
        let char = self.text[at..].chars().next()?;
        if char.is_whitespace() {
            self.gap = true;
        } else {
            for lower in char.to_lowercase() {
                for &byte in lower.encode_utf8(&mut [0; 4]).as_bytes() {
                    self.put(byte)?;
                }
            }
        }
        Some(at + char.len_utf8())
    }

    fn put(&mut self, byte: u8) -> Option<()> {
        if std::mem::take(&mut self.gap) && !self.empty && !(self.emit)(b' ') {
            return None;
        }
        self.empty = false;
        (self.emit)(byte).then_some(())
    }
}
