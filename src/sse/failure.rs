use std::fmt;

use bytes::Bytes;
use serde_json::Value;

use super::state::MAX_TEXT;

/// A longer event is not kept as [`StreamFailure::body`].
const MAX_BODY: usize = 16 * 1024;

/// What an upstream said in the event by which it reported that it failed.
///
/// Texts that upstream did not give are empty; each is cut at 1 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamFailure {
    /// `error.type`, or Google's `error.status`.
    pub kind: String,
    /// `error.code`, a number as its digits.
    pub code: String,
    /// `error.message`, or the text if upstream sent one in place of an object.
    pub message: String,
    /// The event's data, so that whoever reads error bodies can look for more. Empty if over 16 KiB.
    pub body: Bytes,
}

/// A stream ended without the event that its dialect requires at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Truncated {
    /// Bytes received until then.
    pub position: u64,
}

impl StreamFailure {
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
        let of_choice = || {
            event["choices"]
                .as_array()?
                .iter()
                .find_map(|choice| choice.get("error"))
        };
        let nested = [&event["error"], &event["response"]["error"]]
            .into_iter()
            .find(|error| error.is_object() || error.is_string())
            .or_else(of_choice)
            .unwrap_or(&Value::Null);
        let text = |key: &str| {
            let found = [&nested[key], &event[key]].map(scalar);
            // A flat event's `type` says only that it is an error.
            found
                .into_iter()
                .flatten()
                .find(|text| key != "type" || !is_event_type(text))
        };
        failure.kind = text("type")
            .or_else(|| scalar(&nested["status"]))
            .unwrap_or_default();
        failure.code = text("code").unwrap_or_default();
        failure.message = scalar(nested)
            .or_else(|| text("message"))
            .or_else(|| scalar(&event))
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
