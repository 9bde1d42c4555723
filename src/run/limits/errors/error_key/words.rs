//! Words of ASCII letters and digits.

/// Where the word of ASCII letters and digits that begins at `at` ends.
pub(super) fn word_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at.min(bytes.len())..];
    let length = rest.iter().position(|byte| !byte.is_ascii_alphanumeric());
    at + length.unwrap_or(rest.len())
}

pub(super) fn is_any(word: &[u8], words: &[&[u8]]) -> bool {
    words.iter().any(|other| word.eq_ignore_ascii_case(other))
}
