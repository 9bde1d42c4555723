use std::fmt;

use bytes::Bytes;
use serde_json::Value;

use super::{grammar::Dialect, state::MAX_TEXT};

/// A longer event is not kept as [`StreamFailure::body`].
const MAX_BODY: usize = 16 * 1024;

/// What an upstream said in the event by which it reported that it failed.
///
/// Texts that upstream did not give are empty; each is cut at 1 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamFailure {
    /// `error.type`, Google's `error.status`, AWS's `__type` or the exception that it is.
    pub kind: String,
    /// `error.code`, a number as its digits.
    pub code: String,
    /// `error.message`, or the text if upstream sent one in place of an object.
    pub message: String,
    /// The event's data, so that whoever reads error bodies can look for more. Empty if over 16 KiB.
    pub body: Bytes,
    /// Its event is called `error`.
    pub(super) is_named: bool,
}

/// A stream ended without the event that its dialect requires at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Truncated {
    /// Bytes received until then.
    pub position: u64,
}

impl StreamFailure {
    /// Whether the SDKs of this dialect raise it. An upstream that answers in words
    /// of another one is not heard: the SDK takes what came so far for the whole.
    pub(crate) fn is_heard(&self, dialect: Dialect) -> bool {
        match dialect {
            Dialect::Anthropic => self.is_named,
            // Too long to be kept, it is taken for what it most likely is.
            Dialect::OpenAiChat if self.body.is_empty() => true,
            Dialect::OpenAiChat => serde_json::from_slice::<Value>(&self.body)
                .is_ok_and(|event| !event["error"].is_null()),
            _ => true,
        }
    }

    /// Reads the data of an event that is known to report a failure, in any of the known shapes.
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
            // A flat event's `type` says only that it is an error.
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
            .or_else(|| ["message", "Message", "detail"].into_iter().find_map(text))
            .or_else(|| scalar(event))
            .unwrap_or_default();
        failure
    }
}

impl Truncated {
    /// The error of a stream that ended after `position` bytes.
    #[must_use]
    pub const fn new(position: u64) -> Self {
        Self { position }
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

/// The error inside the data of an event that reports a failure, in any of the known shapes; null
/// if the data itself is the error, or text.
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

/// Google sends a list where it would have streamed.
fn first(event: &Value) -> &Value {
    event.get(0).unwrap_or(event)
}

/// AWS's streams have one member, which is named for what it is.
fn exception(event: &Value) -> Option<(&str, &Value)> {
    let mut members = event.as_object()?.iter();
    let (name, error) = members.find(|(name, _)| name.ends_with("Exception"))?;
    Some((name, error))
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
    let mut end = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
