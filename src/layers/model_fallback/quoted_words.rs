//! Searches a request for words that its upstream may have quoted from it.

use http::{HeaderMap, header, request::Parts};
use memchr::memmem;

/// The longest body that is searched, in bytes.
const MAX_BODY: usize = 1024 * 1024;

/// How many times escapes are decoded: a tool's arguments are JSON in a string of JSON.
const MAX_LEVELS: usize = 4;

/// Whether the request may contain `words`: it does, in any letter case and however they are escaped
/// or separated, or it cannot be searched, as its body is compressed or longer than 1 MiB.
///
/// Only letters and digits are compared, so a phrase also counts that is spread over several strings
/// of the body. The search reads the body at most nine times: 1 MiB took 1 to 5 ms on one core of a server.
pub(super) fn may_contain(head: &Parts, body: &[u8], words: &str) -> bool {
    let words = normalized(words.as_bytes());
    if words.is_empty() || body.len() > MAX_BODY || is_encoded(&head.headers) {
        return true;
    }
    let finder = memmem::Finder::new(&words);
    let is_in = |text: &[u8]| finder.find(&normalized(text)).is_some();
    let values = head.headers.iter();
    let mut values = values.flat_map(|(name, value)| [name.as_str().as_bytes(), value.as_bytes()]);
    let target = decoded_target(&head.uri.to_string());
    if values.any(is_in) || is_in(&target) || is_in(body) {
        return true;
    }
    let mut text = None;
    for _ in 0..MAX_LEVELS {
        let Some(next) = unescaped(text.as_deref().unwrap_or(body)) else {
            return false;
        };
        if is_in(&next) {
            return true;
        }
        text = Some(next);
    }
    false
}

fn is_encoded(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).into_iter();
    encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// The letters and digits of a text, the ASCII ones in lower case.
fn normalized(text: &[u8]) -> Vec<u8> {
    let kept = text
        .iter()
        .filter(|byte| byte.is_ascii_alphanumeric() || !byte.is_ascii());
    kept.map(u8::to_ascii_lowercase).collect()
}

/// Decodes the escapes of JSON strings; `None` if there is none.
fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    memchr::memchr(b'\\', text)?;
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        decoded.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let Some((&escape, after)) = rest.split_first() else {
            break;
        };
        match escape {
            b'u' => match unit(after) {
                Some(unit) => {
                    // Half of a pair is not needed: no phrase has such a character.
                    let char = char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER);
                    decoded.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                    rest = &after[4..];
                }
                None => rest = after,
            },
            b'n' | b'r' | b't' | b'b' | b'f' => {
                decoded.push(b' ');
                rest = after;
            }
            other => {
                decoded.push(other);
                rest = after;
            }
        }
    }
    decoded.extend_from_slice(rest);
    Some(decoded)
}

fn unit(text: &[u8]) -> Option<u32> {
    let digits = std::str::from_utf8(text.get(..4)?).ok()?;
    u32::from_str_radix(digits, 16).ok()
}

/// Decodes the percent signs of a request's target.
fn decoded_target(target: &str) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(target.len());
    let mut rest = target.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| first == b'%');
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                rest = &after[2..];
            }
            None => {
                decoded.push(first);
                rest = after;
            }
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::may_contain;

    const WORDS: &str = "credit balance is too low";

    fn found(body: &str) -> bool {
        let (head, ()) = Request::new(()).into_parts();
        may_contain(&head, body.as_bytes(), WORDS)
    }

    #[test]
    fn words_are_found_however_they_are_written() {
        for body in [
            r#"{"m":"Credit balance is too low"}"#,
            r#"{"m":"credit\u0020balance is\ntoo\tlow"}"#,
            r#"{"m":"\u0063redit balance is too lo\u0077"}"#,
            r#"{"a":"{\"x\":\"credit\\u0020b\\u0061lance is too low\"}"}"#,
            r#"{"m":["credit bal","ance is too low"]}"#,
            r#"{"role":"credit_balance-is.too LOW"}"#,
            "a form: credit balance is too low",
        ] {
            assert!(found(body), "{body}");
        }
        for body in ["", "{}", r#"{"m":"credit balances are too low"}"#] {
            assert!(!found(body), "{body}");
        }
    }

    #[test]
    fn what_cannot_be_searched_may_contain_the_words() {
        let large = " ".repeat(super::MAX_BODY + 1);
        assert!(found(&large));
        assert!(!found(&large[1..]));
        let encoded = Request::builder().header("content-encoding", "zstd");
        let (head, ()) = encoded.body(()).unwrap().into_parts();
        assert!(may_contain(&head, b"", WORDS));
    }

    #[test]
    fn the_head_is_searched_too() {
        let request = Request::builder()
            .uri("/v1/chat/completions?x=credit%20balance+is%20too%20low")
            .body(());
        let (head, ()) = request.unwrap().into_parts();
        assert!(may_contain(&head, b"", WORDS));
        let request = Request::builder().header("x-tool", WORDS).body(());
        let (head, ()) = request.unwrap().into_parts();
        assert!(may_contain(&head, b"", WORDS));
    }

    proptest! {
        #[test]
        fn escaped_words_are_found_behind_any_text(
            before in "\\PC{0,40}",
            after in "\\PC{0,40}",
            levels in 1_usize..4,
        ) {
            let mut text = format!("{before} {WORDS} {after}");
            for _ in 0..levels {
                text = serde_json::Value::String(text).to_string();
            }
            prop_assert!(found(&text), "{}", text);
        }

        #[test]
        fn any_bytes_are_searched(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (head, ()) = Request::new(()).into_parts();
            may_contain(&head, &body, WORDS);
        }
    }
}
