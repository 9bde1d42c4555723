use std::{fmt, ops::Range, sync::LazyLock};

use bytes::Bytes;
use memchr::memmem::Finder;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Value, error::Category, value::RawValue};

use super::json_validator::ValidatingWalk;
use crate::error::InvalidRequest;

/// The `model` and `stream` of a JSON request, and the position of `model`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFields {
    model: Option<Model>,
    stream: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Model {
    /// The byte range of the `model` value in the request's body, quotes included.
    at: Range<usize>,
    text: ModelName,
}

/// The name of a model, with its JSON escapes decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ModelName {
    /// The name as a slice of the body, if it contains no escape.
    Plain(Bytes),
    Unescaped(String),
}

static STREAM: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"stream\""));
static INCLUDE_USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"include_usage"));
static CHOICES: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"n\""));

/// Whether a request may ask for a stream: its body has the key. The body is not parsed.
pub fn names_stream(body: impl IntoIterator<Item = impl AsRef<[u8]>>) -> bool {
    let names = |part: &[u8]| STREAM.find(part).is_some();
    body.into_iter().any(|part| names(part.as_ref()))
}

/// What may follow in a chat stream once all choices so far have finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterFinish {
    /// No layer has read the request.
    #[default]
    Unknown = 0,
    /// Nothing follows but the terminator.
    Nothing = 1,
    /// The request may ask for usage.
    Usage = 2,
    /// The request may ask for several choices.
    Choices = 3,
}

impl AfterFinish {
    /// Searches the request's body for what it may ask for. The body is not parsed.
    pub fn of(body: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        let mut after_finish = Self::Nothing;
        for part in body {
            let part = part.as_ref();
            let mut counts = CHOICES.find_iter(part);
            if counts.any(|at| !is_one(&part[at + CHOICES.needle().len()..])) {
                return Self::Choices;
            }
            if INCLUDE_USAGE.find(part).is_some() {
                after_finish = Self::Usage;
            }
        }
        after_finish
    }
}

/// Whether the text behind a key has the value 1.
fn is_one(behind: &[u8]) -> bool {
    let value = behind.trim_ascii_start().strip_prefix(b":");
    let rest = value.and_then(|value| value.trim_ascii_start().strip_prefix(b"1"));
    let last = rest.and_then(|rest| rest.first());
    last.is_some_and(|byte| matches!(byte, b',' | b'}') || byte.is_ascii_whitespace())
}

impl RequestFields {
    /// Reads the `model` and `stream` of a request from `body`, which must be a JSON
    /// object.
    pub fn read(body: &Bytes) -> Result<Self, InvalidRequest> {
        let text = std::str::from_utf8(body).map_err(|error| not_json(&error))?;
        match Self::read_plain(body) {
            Some(fields) => Ok(fields),
            None => Self::read_any(body, text),
        }
    }

    /// Reads any body as [`read`](Self::read) does, by `serde_json`; `text` is the body.
    pub(super) fn read_any(body: &Bytes, text: &str) -> Result<Self, InvalidRequest> {
        match text.trim_ascii_start().bytes().next() {
            Some(b'{') => {}
            _ if text.starts_with('\u{feff}') => {
                return Err(not_json(&"it begins with a byte order mark"));
            }
            _ => {
                // A type error of the visitor would quote the caller's value in its message, so
                // test for an object here.
                serde_json::from_str::<IgnoredAny>(text).map_err(|error| not_json(&error))?;
                return Err(unusable(&"it is not a JSON object"));
            }
        }
        let mut json = serde_json::Deserializer::from_str(text);
        let fields = json.deserialize_map(FieldsVisitor { body, text });
        fields
            .and_then(|fields| json.end().map(|()| fields))
            .map_err(|error| match error.classify() {
                Category::Data => unusable(&error),
                _ => not_json(&error),
            })
    }

    /// Reads a valid object with short keys and a short `model`, all without escapes.
    ///
    /// The result is `None` for a body that this fast path does not read. Then
    /// [`read_any`](Self::read_any) reads it, or returns the error.
    pub(super) fn read_plain(body: &Bytes) -> Option<Self> {
        let mut json = ValidatingWalk::new(body);
        let mut fields = Self::default();
        if !json.take(b'{')? {
            return None;
        }
        let mut ended = json.take(b'}')?;
        while !ended {
            let key = json.key()??;
            json.peek()?;
            let start = json.position();
            match key {
                b"model" => {
                    if fields.model.is_some() || !json.take(b'"')? {
                        return None;
                    }
                    json.string()??;
                    let at = start..json.position();
                    let text = ModelName::Plain(body.slice(at.start + 1..at.end - 1));
                    fields.model = Some(Model { at, text });
                }
                b"stream" => {
                    json.skip()?;
                    fields.stream = body[start..json.position()] == *b"true";
                }
                _ => json.skip()?,
            }
            ended = json.take(b'}')?;
            if !ended && !json.take(b',')? {
                return None;
            }
        }
        json.is_at_end().then_some(fields)
    }

    /// The model that the request names, if any.
    pub fn model(&self) -> Option<&str> {
        self.model.as_ref().map(|model| model.text.as_str())
    }

    /// Whether the request asks for a stream.
    pub const fn stream(&self) -> bool {
        self.stream
    }

    /// Returns `body` with `model` as the value of its `model` key, as three consecutive parts.
    ///
    /// `body` must be the one that these fields were read from. No other byte changes, and none
    /// is copied. If the body names no model, or names `model` already, the first part is the
    /// body unchanged, and the others are empty.
    pub fn splice(&self, body: &Bytes, model: &str) -> [Bytes; 3] {
        match &self.model {
            Some(Model { at, text }) if text.as_str() != model => [
                body.slice(..at.start),
                Value::from(model).to_string().into(),
                body.slice(at.end..),
            ],
            _ => [body.clone(), Bytes::new(), Bytes::new()],
        }
    }
}

/// Returns `body`, a JSON object without a `model`, with `model` as its first member.
///
/// No other byte changes, and none is copied.
pub fn insert_model(body: &Bytes, model: &str) -> [Bytes; 3] {
    let is_token = |byte: &u8| !byte.is_ascii_whitespace();
    let start = body.iter().position(|byte| *byte == b'{').unwrap_or(0) + 1;
    let next = body[start..].iter().find(|byte| is_token(byte));
    let comma = if next == Some(&b'}') { "" } else { "," };
    let member = format!("\"model\":{}{comma}", Value::from(model));
    [body.slice(..start), member.into(), body.slice(start..)]
}

fn not_json(error: &dyn fmt::Display) -> InvalidRequest {
    InvalidRequest::new(format!("the request body is not JSON: {error}"))
}

fn unusable(error: &dyn fmt::Display) -> InvalidRequest {
    InvalidRequest::new(format!("the request body is unusable: {error}"))
}

/// A key of the request's top level: one that is read, or any other.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum RequestField {
    Model,
    Stream,
    #[serde(other)]
    Other,
}

/// Reads the fields of a request from `text`, the JSON in `body`.
struct FieldsVisitor<'a> {
    body: &'a Bytes,
    text: &'a str,
}

impl ModelName {
    fn as_str(&self) -> &str {
        match self {
            // The slice was cut from valid UTF-8, so the conversion does not fail.
            Self::Plain(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            Self::Unescaped(text) => text,
        }
    }
}

impl<'de> Visitor<'de> for FieldsVisitor<'_> {
    type Value = RequestFields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RequestFields, A::Error> {
        let mut fields = RequestFields::default();
        while let Some(key) = map.next_key()? {
            match key {
                RequestField::Model if fields.model.is_some() => {
                    // JSON readers differ in which duplicate counts, so the upstream could use
                    // another model than this crate.
                    return Err(A::Error::custom("a second `model`"));
                }
                RequestField::Model => {
                    let raw = map.next_value::<&RawValue>()?.get();
                    if !raw.starts_with('"') {
                        return Err(A::Error::custom("`model` is not a string"));
                    }
                    // `raw` is a slice of the text.
                    let start = raw.as_ptr() as usize - self.text.as_ptr() as usize;
                    let at = start..start + raw.len();
                    let text = if serde_json::from_str::<&str>(raw).is_ok() {
                        ModelName::Plain(self.body.slice(at.start + 1..at.end - 1))
                    } else {
                        let text = serde_json::from_str(raw);
                        let not_text = |_| A::Error::custom("`model` is not Unicode text");
                        ModelName::Unescaped(text.map_err(not_text)?)
                    };
                    fields.model = Some(Model { at, text });
                }
                RequestField::Stream => {
                    fields.stream = map.next_value::<&RawValue>()?.get() == "true"
                }
                RequestField::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(fields)
    }
}
