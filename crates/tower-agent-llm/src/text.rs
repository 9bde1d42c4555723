//! Parts of texts, in whole characters.

use std::sync::Arc;

/// Returns the first `most` bytes of `text`, in whole characters.
///
/// The result is `None` if `most` is 0 or `text` is empty.
#[must_use]
pub fn excerpt(text: &[u8], most: usize) -> Option<Arc<str>> {
    if most == 0 || text.is_empty() {
        return None;
    }
    Some(cut(&String::from_utf8_lossy(text), most).into())
}

/// Returns the longest prefix of `text` of at most `most` bytes, in whole characters.
#[must_use]
pub fn cut(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
