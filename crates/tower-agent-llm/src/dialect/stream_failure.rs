use std::fmt;

use bytes::Bytes;
use serde_json::Value;

use super::{Dialect, error_body};
use crate::sse::ErrorInfo;

/// The most bytes that are kept of each text in an upstream's failure, and of a stop reason.
pub(super) const MAX_TEXT: usize = 1024;

/// The longest data of a failure event that are kept as [`StreamFailure::body`], in
/// bytes.
const MAX_BODY: usize = 16 * 1024;

/// The content of the event by which an upstream reported a failure.
///
/// Texts that the event lacks are empty; each text is cut at 1 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamFailure {
    /// The kind of the failure: `error.type`, Google's `error.status`, AWS's `__type`, or the
    /// name of AWS's exception, the first one present.
    pub kind: String,
    /// The code of the failure, `error.code`; a number as its digits. Of an event without an error
    /// object, its own `code`.
    pub code: String,
    /// The message of the failure, `error.message`, or a text instead of it, such as `details`. Of
    /// an event without an error object, its own message or text.
    pub message: String,
    /// The data of the failure event; empty if longer than 16 KiB.
    pub body: Bytes,
    /// Whether the failure event is named `error`.
    pub(super) is_named: bool,
    /// Whether the failure stands in the stream in a form that SDKs ignore.
    pub(super) is_bare: bool,
}

/// The error of a stream that ended without its dialect's terminator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Truncated {
    /// The number of the stream's bytes that were received.
    pub position: u64,
    /// Whether the stream was nothing but JSON without a field: a fault of the upstream, and none of
    /// the connection.
    #[doc(hidden)]
    pub is_unframed: bool,
}

impl StreamFailure {
    /// The body of an error answer instead of the stream that reported this failure.
    #[doc(hidden)]
    pub fn to_answer(&self, dialect: Dialect) -> Bytes {
        let event: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        if event["error"].is_object() {
            return self.body.clone();
        }
        let names = [&*self.kind, &*self.code, "upstream_failed"];
        let info = ErrorInfo {
            code: names
                .into_iter()
                .find(|it| !it.is_empty())
                .unwrap_or_default(),
            message: &self.message,
            run_id: None,
            sequence: 0,
            response_id: None,
        };
        error_body(dialect, &info)
    }

    /// The failure as one in a form that SDKs ignore.
    pub(super) const fn bare(mut self) -> Self {
        self.is_bare = true;
        self
    }

    /// Whether a JSON document in the place of an event reports a failure: it has an error, and is
    /// no answer. `is_first` says that nothing stands before it: then a message suffices, if it
    /// stands alone or beside a code of an error.
    pub(crate) fn is_in(json: &[u8], is_first: bool) -> bool {
        let Ok(document) = serde_json::from_slice::<Value>(json) else {
            return false;
        };
        let document = first(&document);
        if document["type"] == "error" {
            return true;
        }
        let is_filled = |key: &&str| match &document[*key] {
            Value::Null => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Object(members) => !members.is_empty(),
            _ => true,
        };
        let mut answers = ["output", "content", "delta", "candidates", "choices"].iter();
        let has_failed = document["status"] == "failed" || have_failed(&document["choices"]);
        if answers.any(is_filled) && !has_failed {
            return false;
        }
        let is_message = || {
            let mut messages = ["message", "detail", "msg"].iter();
            let mut codes = ["code", "status", "status_code", "statusCode"].iter();
            let is_alone = document.as_object().is_some_and(|it| it.len() == 1);
            messages.any(is_filled) && (is_alone || codes.any(|it| is_error_code(&document[*it])))
        };
        !error_in(document).is_null() || is_first && is_message()
    }

    /// Reads a failure from the data of the event that reports it, in any known shape.
    #[must_use]
    pub fn read(data: &[u8]) -> Self {
        let mut failure = Self::default();
        if data.len() <= MAX_BODY {
            failure.body = Bytes::copy_from_slice(data);
        }
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            failure.message = cut(&String::from_utf8_lossy(data));
            return failure;
        };
        let event = first(&event);
        let nested = error_in(event);
        let text = |key: &str| {
            let found = [&nested[key], &event[key]].map(scalar);
            // The `type` of a flat event is only the name of the event.
            found
                .into_iter()
                .flatten()
                .find(|text| key != "type" || !is_event_type(text))
        };
        failure.kind = text("type")
            .or_else(|| nested["status"].as_str().map(cut))
            .or_else(|| text("__type"))
            .or_else(|| exception(event).map(|(name, _)| cut(name)))
            .unwrap_or_default();
        failure.code = text("code").unwrap_or_default();
        failure.message = scalar(nested)
            .or_else(|| {
                ["message", "Message", "detail", "details"]
                    .into_iter()
                    .find_map(text)
            })
            .or_else(|| scalar(event))
            .unwrap_or_default();
        failure
    }
}

impl Truncated {
    /// Creates the error of a stream that ended after `position` bytes.
    #[must_use]
    pub const fn new(position: u64) -> Self {
        Self {
            position,
            is_unframed: false,
        }
    }
}

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "stream ended without its terminator at byte {}",
            self.position
        )
    }
}

impl std::error::Error for Truncated {}

/// Finds the error object in the data of a failure event, in any known shape.
///
/// The result may also be an error text. The result is null if the data holds neither an error
/// object nor an error text: then the data itself is the error.
pub(crate) fn error_in(event: &Value) -> &Value {
    let event = first(event);
    let choices = event["choices"].as_array().into_iter().flatten();
    [&event["error"], &event["response"]["error"]]
        .into_iter()
        .chain(choices.map(|choice| &choice["error"]))
        .chain(exception(event).map(|(_, error)| error))
        .find(|error| error.is_object() || error.is_string())
        .unwrap_or(&Value::Null)
}

/// Returns the event itself; for a list, its first element. Google sends a list instead of a
/// stream.
fn first(event: &Value) -> &Value {
    event.get(0).unwrap_or(event)
}

/// Finds the name and the fields of an AWS exception: the first key that ends in `Exception`.
fn exception(event: &Value) -> Option<(&str, &Value)> {
    let mut members = event.as_object()?.iter();
    let (name, error) = members.find(|(name, _)| name.ends_with("Exception"))?;
    Some((name, error))
}

/// Whether an answer has choices, and every one of them ended with an error.
fn have_failed(choices: &Value) -> bool {
    let has_failed =
        |choice: &Value| choice["finish_reason"] == "error" || !choice["error"].is_null();
    let mut choices = choices.as_array().into_iter().flatten().peekable();
    choices.peek().is_some() && choices.all(has_failed)
}

/// Whether a code says that something failed: a word, or a number that is not a success of HTTP.
fn is_error_code(code: &Value) -> bool {
    match code {
        Value::String(text) => match text.parse::<u64>() {
            Ok(number) => number >= 300,
            Err(_) => !text.is_empty(),
        },
        Value::Number(number) => number.as_i64().is_some_and(|it| !(0..300).contains(&it)),
        _ => false,
    }
}

fn is_event_type(text: &str) -> bool {
    text == "error" || text.starts_with("response.")
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(cut(text)),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn cut(text: &str) -> String {
    crate::cut(text, MAX_TEXT).to_owned()
}
