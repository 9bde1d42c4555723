//! Finds out whether an answer's body is an error or an HTML page.

use std::sync::LazyLock;

use http::{HeaderMap, header};
use memchr::memmem::Finder;

use crate::json_scanner::{Scanner, Text};

static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"error\""));

/// Whether the body of an answer with a good status is an error.
pub(super) fn is_error(body: &[u8]) -> bool {
    // This search avoids parsing nearly every answer: only a body with `error` as a key or as a
    // whole string is parsed. In a text that quotes the key, a backslash stands before the second
    // quotation mark, so the text does not match.
    if ERROR.find(body).is_none() {
        return false;
    }
    // Google sends a stream without SSE as a JSON list; this function reads its first element.
    let body = first_of(body);
    let Ok([error, kind, object, status]) =
        Scanner::members(body, [b"error", b"type", b"object", b"status"])
    else {
        return false;
    };
    let keys: [&[u8]; 5] = [b"choices", b"output", b"content", b"data", b"candidates"];
    let answers = Scanner::members(body, keys).unwrap_or_default();
    if is(kind, b"\"error\"") || is(object, b"\"error\"") || answers[0].is_some_and(have_failed) {
        return true;
    }
    let is_answer = answers.into_iter().flatten().any(is_filled);
    // A response with the status `failed` counts even with content: the model's output so far.
    let may_fail = is(status, b"\"failed\"") || !is_answer;
    may_fail && error.is_some_and(reports_error)
}

/// Whether the body of an answer that [is an error](is_error) is nothing else: no client can take it
/// for an answer. A failed response of OpenAI's API is one, and so is a choice that failed.
pub(super) fn is_error_alone(body: &[u8]) -> bool {
    let names: [&[u8]; 3] = [b"object", b"choices", b"output"];
    let members = Scanner::members(first_of(body), names);
    members.is_ok_and(|[object, choices, output]| {
        !is(object, b"\"response\"") && ![choices, output].into_iter().flatten().any(is_filled)
    })
}

/// The JSON of an error answer that is written as an event of a stream; `None` for any other body.
pub fn unframed(body: &[u8]) -> Option<&[u8]> {
    let mut lines = body.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with(b":"))?;
    let value = |line: &'_ [u8]| -> Option<usize> {
        let names: [&[u8]; 2] = [b"error:", b"data:"];
        let name = names.into_iter().find(|name| line.starts_with(name))?;
        Some(name.len())
    };
    let mut lines = std::iter::once(first).chain(lines.filter(|_| first.starts_with(b"event:")));
    lines.find_map(|line| {
        let json = line[value(line)?..].trim_ascii_start();
        json.starts_with(b"{").then_some(json)
    })
}

/// The JSON before the events of a body that is a stream but for its start; `None` for any other
/// body.
pub(super) fn before_events(body: &[u8]) -> Option<&[u8]> {
    ERROR.find(body)?;
    let body = body.trim_ascii_start();
    let json = Scanner::new(body).span().ok()?;
    let rest = body.get(json.len()..)?.trim_ascii_start();
    let fields: [&[u8]; 4] = [b"data:", b"event:", b"id:", b":"];
    let is_stream = fields.iter().any(|field| rest.starts_with(field));
    is_stream.then_some(json)
}

/// The name that an error body gives its error: the code if that is a name, else the type, else
/// Google's status.
///
/// A name has up to 64 characters of an identifier, so that a message is never taken for one.
pub fn stated_code(body: &[u8]) -> Option<String> {
    let [error] = Scanner::members(first_of(body), [b"error"]).ok()?;
    let names: [&[u8]; 3] = [b"code", b"type", b"status"];
    let names = Scanner::members(error?, names).ok()?;
    let is_name = |name: &[u8]| {
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
        (1..=64).contains(&name.len()) && name.iter().all(is_part)
    };
    let mut names = names.into_iter().flatten().filter_map(Text::of);
    names.find_map(|name| {
        let name = name.decoded();
        let name = is_name(&name).then(|| name.into_owned())?;
        String::from_utf8(name).ok()
    })
}

/// The first element of a body that is a JSON list, else the body.
fn first_of(body: &[u8]) -> &[u8] {
    let mut first = None;
    let read = Scanner::new(body).array(|json| {
        first.get_or_insert(json.span()?);
        Ok(())
    });
    match read {
        Ok(true) => first.unwrap_or_default(),
        _ => body,
    }
}

/// Whether an answer's body is an HTML page, as from a wrong address or a proxy.
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
    // Some servers send JSON with the content type `text/html`, so its first byte counts more.
    let is_json = starts(b"{") || starts(b"[");
    starts(b"<!doctype html") || starts(b"<html") || is_announced && !is_json
}

fn is(span: Option<&[u8]>, wanted: &[u8]) -> bool {
    span == Some(wanted)
}

/// Whether a JSON value has more than two characters without whitespace, unlike `""`, `[]` and
/// `{}`, and is not null.
fn is_filled(span: &[u8]) -> bool {
    let text = span.iter().filter(|byte| !byte.is_ascii_whitespace());
    span != b"null" && text.take(3).count() == 3
}

/// Whether an answer has choices, and every one of them ended with an error.
fn have_failed(choices: &[u8]) -> bool {
    let (mut all, mut failed) = (0, 0);
    let read = Scanner::new(choices).array(|json| {
        let [error, reason] = Scanner::members(json.span()?, [b"error", b"finish_reason"])?;
        let error = error.filter(|error| error.starts_with(b"{") && is_filled(error));
        all += 1;
        failed += u32::from(is(reason, b"\"error\"") || error.is_some_and(reports_error));
        Ok(())
    });
    read.is_ok() && all > 0 && all == failed
}

/// Whether the value of an `error` key reports an error.
fn reports_error(span: &[u8]) -> bool {
    Scanner::new(span).is_error().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{before_events, unframed};

    const ERROR: &str = r#"{"error":{"code":"c"}}"#;

    fn text(json: Option<&[u8]>) -> Option<&str> {
        json.map(|json| std::str::from_utf8(json).unwrap())
    }

    #[test]
    fn an_error_that_is_written_as_an_event_is_read_without_its_field() {
        for body in [
            "data: JSON",
            "data:JSON\n\n",
            "error: JSON\n",
            "\n: comment\r\n\r\ndata: JSON\r\n\r\n",
            "event: error\ndata: JSON\n\n",
            "event:error\nid: 1\nerror:JSON",
        ] {
            let body = body.replace("JSON", ERROR);
            assert_eq!(text(unframed(body.as_bytes())), Some(ERROR), "{body:?}");
        }
        for body in [
            "JSON",
            "",
            "data:",
            "data: no",
            "id: 1\ndata: JSON",
            "<p>\ndata: JSON",
            "datum: JSON",
            "error JSON",
        ] {
            let body = body.replace("JSON", ERROR);
            assert_eq!(text(unframed(body.as_bytes())), None, "{body:?}");
        }
    }

    #[test]
    fn an_error_before_events_is_the_json_that_it_begins_with() {
        for body in [
            "JSON\n\ndata: [DONE]\n\n",
            "  JSON data: [DONE]",
            "JSON\n: comment",
            "JSON\nevent: end\ndata: {}\n\n",
        ] {
            let body = body.replace("JSON", ERROR);
            assert_eq!(
                text(before_events(body.as_bytes())),
                Some(ERROR),
                "{body:?}"
            );
        }
        for body in [
            "JSON",
            "JSON\n",
            "JSONJSON",
            "JSON, data: 1",
            "{\"a\":1}\n\ndata: [DONE]\n\n",
            "data: JSON\n\ndata: [DONE]\n\n",
            "{\"error\":1\ndata: [DONE]",
        ] {
            let body = body.replace("JSON", ERROR);
            assert_eq!(text(before_events(body.as_bytes())), None, "{body:?}");
        }
    }
}
