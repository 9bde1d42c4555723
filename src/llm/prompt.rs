use std::{fmt, ops::Range};

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, error::Category, value::RawValue};

use crate::error::InvalidRequest;

/// What a JSON request says of itself, read once, and where its `model` stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    model: Option<Model>,
    stream: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Model {
    /// The bytes of its value, quotes included.
    at: Range<usize>,
    text: ModelName,
}

/// A name, as it is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ModelName {
    /// As it stands in the body, where nothing of it is escaped.
    Plain(Bytes),
    Unescaped(String),
}

impl Prompt {
    /// Reads the whole of `body`, which must be a JSON object.
    pub(crate) fn read(body: &Bytes) -> Result<Self, InvalidRequest> {
        let text = std::str::from_utf8(body).map_err(|error| not_json(&error))?;
        match text.trim_ascii_start().bytes().next() {
            Some(b'{') => {}
            _ if text.starts_with('\u{feff}') => {
                return Err(not_json(&"it begins with a byte order mark"));
            }
            _ => {
                // Not left to the visitor, whose error would repeat the value.
                serde_json::from_str::<IgnoredAny>(text).map_err(|error| not_json(&error))?;
                return Err(unusable(&"it is not a JSON object"));
            }
        }
        let object: Object<'_> =
            serde_json::from_str(text).map_err(|error| match error.classify() {
                Category::Data => unusable(&error),
                _ => not_json(&error),
            })?;
        let model = object
            .model
            .map(|model| model.within(body, text))
            .transpose()?;
        Ok(Self {
            model,
            stream: object.stream,
        })
    }

    /// The model that is asked for, if the request names one.
    pub(crate) fn model(&self) -> Option<&str> {
        self.model.as_ref().map(|model| model.text.as_str())
    }

    /// Whether the answer is to be a stream.
    pub(crate) const fn stream(&self) -> bool {
        self.stream
    }

    /// The parts of `body`, which this was read from, with another value of `model`: no
    /// other byte changes, and none is copied. A body that names no model, or this one,
    /// stays as it is, in the first part.
    pub(crate) fn splice(&self, body: &Bytes, model: &str) -> [Bytes; 3] {
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

fn not_json(error: &dyn fmt::Display) -> InvalidRequest {
    InvalidRequest::new(format!("the request body is not JSON: {error}"))
}

fn unusable(error: &dyn fmt::Display) -> InvalidRequest {
    InvalidRequest::new(format!("the request body is unusable: {error}"))
}

/// The document's top level.
#[derive(Default)]
struct Object<'a> {
    model: Option<RawModel<'a>>,
    stream: bool,
}

struct RawModel<'a> {
    /// As it is written, a slice of the document.
    raw: &'a str,
    /// What it means, if that is not what stands there.
    unescaped: Option<String>,
}

/// A key of the top level, whichever way it is written.
enum PromptKey {
    Model,
    Stream,
    Other,
}

struct ObjectVisitor;

struct KeyVisitor;

impl ModelName {
    fn as_str(&self) -> &str {
        match self {
            // It was text before it was cut out.
            Self::Plain(bytes) => std::str::from_utf8(bytes).unwrap_or_default(),
            Self::Unescaped(text) => text,
        }
    }
}

impl RawModel<'_> {
    fn within(self, body: &Bytes, document: &str) -> Result<Model, InvalidRequest> {
        // The reader lends a slice of the document; were it a copy, it would
        // not be found there.
        (self.raw.as_ptr() as usize)
            .checked_sub(document.as_ptr() as usize)
            .filter(|&start| {
                let from = document.get(start..);
                from.is_some_and(|from| from.starts_with(self.raw))
            })
            .map(|start| {
                let at = start..start + self.raw.len();
                let quoted = || ModelName::Plain(body.slice(at.start + 1..at.end - 1));
                let text = self.unescaped.map_or_else(quoted, ModelName::Unescaped);
                Model { at, text }
            })
            .ok_or_else(|| unusable(&"its `model` was not found again"))
    }
}

impl<'de> Deserialize<'de> for Object<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor)
    }
}

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Object<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<'de>, A::Error> {
        let mut object = Object::default();
        while let Some(key) = map.next_key()? {
            match key {
                PromptKey::Model if object.model.is_some() => {
                    // Which of them counts is up to the reader: ours might be
                    // another than the upstream's.
                    return Err(A::Error::custom("a second `model`"));
                }
                PromptKey::Model => {
                    let raw = map.next_value::<&RawValue>()?.get();
                    if !raw.starts_with('"') {
                        return Err(A::Error::custom("`model` is not a string"));
                    }
                    let unescaped = match serde_json::from_str::<&str>(raw) {
                        Ok(_) => None,
                        Err(_) => Some(
                            serde_json::from_str(raw)
                                .map_err(|_| A::Error::custom("`model` is not Unicode text"))?,
                        ),
                    };
                    object.model = Some(RawModel { raw, unescaped });
                }
                PromptKey::Stream => object.stream = map.next_value::<&RawValue>()?.get() == "true",
                PromptKey::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(object)
    }
}

impl<'de> Deserialize<'de> for PromptKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

impl Visitor<'_> for KeyVisitor {
    type Value = PromptKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<PromptKey, E> {
        Ok(match key {
            "model" => PromptKey::Model,
            "stream" => PromptKey::Stream,
            _ => PromptKey::Other,
        })
    }
}
