use http::{HeaderMap, header};
use memchr::memmem;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// The keys that tell an answer from an error, at the top of a body.
#[derive(Deserialize)]
struct Top<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    choices: Option<&'a RawValue>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow)]
    candidates: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
}

/// Whether a body that came with a good status is an error all the same.
pub(super) fn is_error(body: &[u8]) -> bool {
    // Nearly every answer ends here, unparsed. A text that quotes the key has
    // a backslash before its second quotation mark.
    if memmem::find(body, b"\"error\"").is_none() {
        return false;
    }
    // Google sends a list where it would have streamed.
    let body = match serde_json::from_slice::<Vec<&RawValue>>(body) {
        Ok(list) => list.first().map_or("", |first| first.get()).as_bytes(),
        Err(_) => body,
    };
    let Ok(top) = serde_json::from_slice::<Top<'_>>(body) else {
        return false;
    };
    let is_named = is(top.kind, "\"error\"") || is(top.object, "\"error\"");
    if is_named || top.choices.is_some_and(have_failed) {
        return true;
    }
    let answers = [
        top.choices,
        top.output,
        top.content,
        top.data,
        top.candidates,
    ];
    let is_answer = answers.into_iter().flatten().any(is_filled);
    // A failed response may hold what the model had said until then.
    let may_fail = is(top.status, "\"failed\"") || !is_answer;
    may_fail && top.error.is_some_and(says_something)
}

/// Whether a body that is announced as JSON is none, or half of one.
///
/// Only its ends are looked at: what is cut has the wrong last byte, and to parse
/// every answer would cost more than all else that is done with it.
pub(super) fn is_broken(headers: &HeaderMap, body: &[u8]) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.map_or(&b""[..], |kind| kind.as_bytes());
    let mut parts = kind.split(|byte| *byte == b';');
    let kind = parts.next().unwrap_or_default().trim_ascii();
    if !kind.eq_ignore_ascii_case(b"application/json") {
        return false;
    }
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    match body.trim_ascii() {
        [b'{', rest @ ..] => rest.last() != Some(&b'}'),
        [b'[', rest @ ..] => rest.last() != Some(&b']'),
        [] | b"null" | b"true" | b"false" => false,
        [first, ..] => !matches!(first, b'"' | b'-' | b'0'..=b'9'),
    }
}

/// Whether the body is a page for people: a wrong address, or a proxy's own.
pub(super) fn is_page(headers: &HeaderMap, body: &[u8]) -> bool {
    let body = body.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(body);
    let body = body.trim_ascii_start();
    let starts = |start: &[u8]| {
        let head = body.get(..start.len());
        head.is_some_and(|head| head.eq_ignore_ascii_case(start))
    };
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.as_bytes().get(..9));
    let is_announced = kind.is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/html"));
    // Some servers announce their JSON as a page.
    let is_json = starts(b"{") || starts(b"[");
    starts(b"<!doctype html") || starts(b"<html") || is_announced && !is_json
}

/// Whether the body can be read as it is.
pub(super) fn is_plain(headers: &HeaderMap) -> bool {
    let coding = headers.get(header::CONTENT_ENCODING);
    coding.is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn is(raw: Option<&RawValue>, wanted: &str) -> bool {
    raw.is_some_and(|raw| raw.get() == wanted)
}

/// Whether there is anything between the brackets.
fn is_filled(raw: &RawValue) -> bool {
    let text = raw.get().bytes();
    text.filter(|byte| !byte.is_ascii_whitespace())
        .nth(2)
        .is_some()
}

/// Whether there are choices, and every one of them ended with an error.
fn have_failed(choices: &RawValue) -> bool {
    let choices = serde_json::from_str::<Vec<Choice<'_>>>(choices.get());
    let choices = choices.unwrap_or_default();
    let has_failed = |choice: &Choice<'_>| {
        let ended = is(choice.finish_reason, "\"error\"");
        ended
            || choice
                .error
                .is_some_and(|error| is_object(error) && says_something(error))
    };
    !choices.is_empty() && choices.iter().all(has_failed)
}

fn is_object(raw: &RawValue) -> bool {
    raw.get().starts_with('{')
}

/// Jobs report an error of which every field is null: it is none.
fn says_something(raw: &RawValue) -> bool {
    match serde_json::from_str(raw.get()) {
        Ok(Value::String(text)) => !text.is_empty(),
        Ok(Value::Object(fields)) => {
            fields.is_empty() || fields.values().any(|value| !value.is_null())
        }
        _ => false,
    }
}
