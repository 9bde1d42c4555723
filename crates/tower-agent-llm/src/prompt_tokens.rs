//! The estimate of a prompt's tokens from the bytes of its request.
//!
//! Upstreams state the tokens of a prompt with their answers, or never; a call that its caller
//! leaves states none. A cap on tokens then needs an estimate:
//!
//! - Four bytes of the request's body, as it is sent, are one token. So the names of keys, the
//!   schemas of tools, brackets and the escapes of JSON count, too.
//! - A string of JSON that is an image or a file counts [`ATTACHMENT`] tokens, as its length says
//!   nothing of them: a `data:` URL, or a string of [`MIN_BASE64`] bytes or more in base64. In
//!   base64 are letters, digits, `+`, `/`, `-`, `_` and `=`, also with escaped slashes and line
//!   breaks; the first [`MIN_BASE64`] bytes must have letters of both cases and digits.
//! - A body that is not a JSON object counts [`ATTACHMENT`] tokens.

use memchr::{memchr, memchr2};

use crate::stream::generated_text::estimated_tokens;

/// The tokens of an image or a file in a prompt.
///
/// At OpenAI and Anthropic a screenshot costs about as much: 765 to 1,600 tokens.
const ATTACHMENT: u64 = 1500;

/// The bytes that a string in base64 has at least. A digest or an id is shorter.
const MIN_BASE64: usize = 256;

/// The most bytes before the comma of a `data:` URL.
const MAX_MEDIA_TYPE: usize = 200;

/// The tokens that the prompt in this body stands for.
///
/// No string of JSON may reach from one of the parts into the next. The function reads each byte
/// once, and allocates nothing.
pub fn prompt_tokens<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    let (mut text, mut attachments, mut is_object) = (0_u64, 0_u64, None);
    for part in parts {
        let first = || part.iter().find(|byte| !byte.is_ascii_whitespace());
        is_object = is_object.or_else(|| first().map(|byte| *byte == b'{'));
        if is_object == Some(false) {
            return ATTACHMENT;
        }
        let mut rest = part;
        while let Some(quote) = memchr(b'"', rest) {
            let string = &rest[quote + 1..];
            let Attached { len, is_attachment } = Attached::read(string);
            if is_attachment {
                text += quote as u64 + 1;
                attachments += 1;
            } else {
                text += (quote + 1 + len) as u64;
            }
            // The closing quote counts as text of the next piece.
            rest = &string[len..];
            if let Some((_quote, behind)) = rest.split_first() {
                text += 1;
                rest = behind;
            }
        }
        text += rest.len() as u64;
    }
    estimated_tokens(text) + attachments * ATTACHMENT
}

/// A string of JSON: the bytes before its closing quote, and whether they are an image or a file.
struct Attached {
    len: usize,
    is_attachment: bool,
}

impl Attached {
    /// Reads a string; `text` begins behind its opening quote. A string that does not end has all
    /// of `text`.
    fn read(text: &[u8]) -> Self {
        let encoded = base64_len(text);
        let is_whole = text.get(encoded).is_none_or(|byte| *byte == b'"');
        if is_whole {
            let is_attachment = encoded >= MIN_BASE64 && is_mixed(&text[..MIN_BASE64]);
            let len = encoded;
            return Self { len, is_attachment };
        }
        Self {
            len: encoded + string_len(&text[encoded..]),
            is_attachment: is_data_url(text),
        }
    }
}

/// The number of bytes before the closing quote.
fn string_len(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = memchr2(b'"', b'\\', &text[at..]) {
        at += found;
        if text[at] == b'"' {
            return at;
        }
        at = (at + 2).min(text.len());
    }
    text.len()
}

/// The number of bytes of base64 that a string begins with, escapes that may be in it included.
fn base64_len(text: &[u8]) -> usize {
    let mut at = 0;
    loop {
        at += plain_base64_len(&text[at..]);
        match text.get(at..at + 2) {
            Some([b'\\', b'/' | b'n' | b'r']) => at += 2,
            _ => return at,
        }
    }
}

fn plain_base64_len(text: &[u8]) -> usize {
    // Without a branch for each byte the compiler reads many at once.
    let all = |chunk: &&[u8]| chunk.iter().fold(true, |all, byte| all & is_base64(*byte));
    let whole = text.chunks_exact(64).take_while(all).count() * 64;
    let rest = text[whole..].iter();
    whole + rest.take_while(|byte| is_base64(**byte)).count()
}

const fn is_base64(byte: u8) -> bool {
    let letter = (byte | 0x20).wrapping_sub(b'a') < 26;
    let digit = byte.wrapping_sub(b'0') < 10;
    // The bytes `+`, `/`, `-`, `_` and `=`.
    let sign = (byte == b'+') | (byte == b'/') | (byte == b'-') | (byte == b'_') | (byte == b'=');
    letter | digit | sign
}

/// Whether there are letters of both cases and digits: a long word of one kind is text.
fn is_mixed(text: &[u8]) -> bool {
    let has = |is: fn(&u8) -> bool| text.iter().any(is);
    has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit)
}

/// Whether a string begins as a URL of this kind: `data:image/png;base64,`.
fn is_data_url(text: &[u8]) -> bool {
    let Some(rest) = text.strip_prefix(b"data:") else {
        return false;
    };
    let head = &rest[..rest.len().min(MAX_MEDIA_TYPE)];
    let Some(comma) = memchr(b',', head) else {
        return false;
    };
    let media_type = &head[..comma];
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'{' | b'<');
    memchr(b'/', media_type).is_some() && media_type.iter().all(is_plain)
}
