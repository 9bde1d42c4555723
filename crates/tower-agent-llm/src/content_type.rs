//! Reads the content type and the content coding of a body from a message's headers.

use http::{HeaderMap, HeaderValue, header};

/// Whether the body needs no decompression: it has no `content-encoding`, or `identity`.
#[inline]
pub fn is_plain(headers: &HeaderMap) -> bool {
    let coding = headers.get(header::CONTENT_ENCODING);
    coding.is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// Whether the headers' content type is `application/json`, or ends in `+json`.
#[inline]
#[must_use]
pub fn names_json(headers: &HeaderMap) -> bool {
    let essence = essence(headers);
    essence.eq_ignore_ascii_case(b"application/json")
        || essence.len() > 5 && essence[essence.len() - 5..].eq_ignore_ascii_case(b"+json")
}

/// Whether the headers' content type is `text/event-stream`.
#[inline]
pub fn names_events(headers: &HeaderMap) -> bool {
    // Layers call this function for every answer, so it compares the beginning of the value. It
    // does not search for the end of the media type as `essence` does.
    let kind = b"text/event-stream";
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.map_or(&b""[..], HeaderValue::as_bytes);
    let essence = value.trim_ascii_start().split_at_checked(kind.len());
    essence.is_some_and(|(essence, rest)| {
        essence.eq_ignore_ascii_case(kind) && rest.first().is_none_or(|byte| b"; \t".contains(byte))
    })
}

/// Returns the headers' content type up to its first semicolon, space or tab.
fn essence(headers: &HeaderMap) -> &[u8] {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.map_or(&b""[..], HeaderValue::as_bytes).trim_ascii();
    let end = value.iter().position(|byte| b"; \t".contains(byte));
    &value[..end.unwrap_or(value.len())]
}
