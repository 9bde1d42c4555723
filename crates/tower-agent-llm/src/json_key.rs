//! Searches JSON texts for keys, without parsing them.

use std::sync::LazyLock;

use memchr::memmem::Finder;

static ESCAPE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\\u00"));

/// Whether a JSON text may have one of some keys: the text has one of `words`, or an escape that may
/// be a part of one.
///
/// The words must be parts of the keys, of small letters and underscores.
pub(crate) fn may_have_key(json: &[u8], words: &[&Finder<'static>]) -> bool {
    words.iter().any(|word| word.find(json).is_some()) || has_escaped_letter(json)
}

/// Whether the text has an escape of a small letter or an underscore, as no API writes its keys.
fn has_escaped_letter(json: &[u8]) -> bool {
    let is_letter = |at| matches!(json.get(at + 4), Some(b'5'..=b'7'));
    ESCAPE.find_iter(json).any(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_however_it_is_written() {
        let word = Finder::new(b"\"name\"").into_owned();
        for json in [r#"{"name":1}"#, r#"{"\u006eame":1}"#, r#"{"n\u0061me":1}"#] {
            assert!(may_have_key(json.as_bytes(), &[&word]), "{json}");
        }
        for json in [
            "",
            "{}",
            r#"{"names":"\u00e9\n","a":"\u00"#,
            r#"["\\\u2019"]"#,
        ] {
            assert!(!may_have_key(json.as_bytes(), &[&word]), "{json}");
        }
    }
}
