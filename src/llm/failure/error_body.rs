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
struct AnswerChoice<'a> {
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

/// Whether the content type is that of a JSON document.
pub(crate) fn names_json(headers: &HeaderMap) -> bool {
    let Some(content_type) = headers.get(header::CONTENT_TYPE) else {
        return false;
    };
    let value = content_type.as_bytes();
    let essence = value.split(|byte| *byte == b';').next().unwrap_or(value);
    let essence = essence.trim_ascii();
    essence.eq_ignore_ascii_case(b"application/json")
        || essence.len() > 5 && essence[essence.len() - 5..].eq_ignore_ascii_case(b"+json")
}

/// Whether a whole body that is announced as JSON, and can be read, is none, or half
/// of one.
pub(crate) fn is_broken_json(headers: &HeaderMap, body: &[u8]) -> bool {
    if !names_json(headers) || !is_plain(headers) {
        return false;
    }
    let mut outline = JsonOutline::default();
    outline.push(body);
    !outline.is_whole()
}

/// How far a body that is announced as JSON has come, piece by piece.
///
/// Brackets outside of strings are counted, and nothing is parsed: that tells half a
/// document from a whole one, and costs little beside what else is done with an answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct JsonOutline {
    first: Option<u8>,
    last: Option<u8>,
    /// How many objects and lists are open; negative for ever once one too many closed.
    open: i64,
    in_string: bool,
    /// The string's next byte is escaped.
    is_escaped: bool,
    bytes: u64,
}

impl JsonOutline {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        // A byte order mark may come before it.
        let is_blank = |byte: &u8| byte.is_ascii_whitespace() || b"\xEF\xBB\xBF".contains(byte);
        if self.first.is_none() {
            self.first = piece.iter().copied().find(|byte| !is_blank(byte));
        }
        let mut backwards = piece.iter().rev().copied();
        let last = backwards.find(|byte| !byte.is_ascii_whitespace());
        self.last = last.or(self.last);
        self.bytes += piece.len() as u64;
        self.count(piece);
    }

    fn count(&mut self, mut rest: &[u8]) {
        while !rest.is_empty() {
            if std::mem::take(&mut self.is_escaped) {
                rest = &rest[1..];
                continue;
            }
            let found = match self.in_string {
                true => memchr::memchr2(b'"', b'\\', rest),
                false => rest
                    .iter()
                    .position(|byte| matches!(byte, b'"' | b'{' | b'}' | b'[' | b']')),
            };
            let Some(at) = found else { return };
            match rest[at] {
                b'"' => self.in_string = !self.in_string,
                b'\\' => self.is_escaped = true,
                b'{' | b'[' if self.open >= 0 => self.open += 1,
                b'}' | b']' if self.open >= 0 => self.open -= 1,
                _ => {}
            }
            rest = &rest[at + 1..];
        }
    }

    /// How many bytes there were.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether what began has ended. Nothing at all is no half of a document.
    pub(crate) fn is_whole(&self) -> bool {
        let Some(first) = self.first else {
            return true;
        };
        let closes = match first {
            b'{' => b'}',
            b'[' => b']',
            b'"' => b'"',
            // true, false, null
            b't' | b'f' => b'e',
            b'n' => b'l',
            _ => return matches!(first, b'-' | b'0'..=b'9'),
        };
        self.last == Some(closes) && self.open == 0 && !self.in_string
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
    let choices = serde_json::from_str::<Vec<AnswerChoice<'_>>>(choices.get());
    let choices = choices.unwrap_or_default();
    let has_failed = |choice: &AnswerChoice<'_>| {
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
