use std::borrow::Cow;

/// A string of a JSON document, as the document has it, with its escapes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    pub(super) raw: &'a [u8],
    pub(super) escaped: bool,
}

impl<'a> Text<'a> {
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
/// Undecodable text is returned unchanged, and so equals no known word.
#[cold]
pub(super) fn decode(raw: &[u8]) -> Cow<'_, [u8]> {
    let mut quoted = Vec::with_capacity(raw.len() + 2);
    quoted.push(b'"');
    quoted.extend_from_slice(raw);
    quoted.push(b'"');
    match serde_json::from_slice::<String>(&quoted) {
        Ok(text) => Cow::Owned(text.into_bytes()),
        Err(_) => Cow::Borrowed(raw),
    }
}
