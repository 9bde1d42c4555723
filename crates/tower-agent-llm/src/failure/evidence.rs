//! Collects what a failed answer says: its names, texts, quotas and times.
//!
//! Only places that an upstream itself fills are read as names. The rest of a body may repeat what
//! a caller sent: a checker of schemas, for example, returns the part of the request that it
//! refuses.

use std::time::SystemTime;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::Value;

use super::times::Times;
use crate::{
    cut,
    dialect::{StreamFailure, error_in},
};

/// The most bytes of one text that are searched for phrases and for errors inside of it.
const MAX_TEXT: usize = 8 * 1024;

/// The most names, and the most texts, that are read from one answer.
const MAX_ITEMS: usize = 32;

/// How many errors inside of the texts of errors are read, one in the other.
const MAX_DEPTH: usize = 3;

/// The keys of an error object whose values name the error.
const NAME_KEYS: [&str; 11] = [
    "type",
    "code",
    "status",
    "reason",
    "__type",
    "error_code",
    "errorCode",
    "error_type",
    "error_reason",
    "status_code",
    "internal_code",
];

/// The keys of an error object whose values tell of it in prose.
const TEXT_KEYS: [&str; 7] = [
    "message",
    "Message",
    "detail",
    "msg",
    "error_description",
    "error_message",
    "status_msg",
];

/// The keys of an error that state its status, beside a code that is one.
const STATUS_KEYS: [&str; 3] = ["status_code", "statusCode", "status"];

/// The fields of an error that signals may look for: what OpenRouter adds to some.
pub const FIELDS: [&str; 3] = [
    "metadata.reasons",
    "metadata.flagged_input",
    "metadata.provider_name",
];

/// A name of an error, in the order of reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) text: String,
    /// Whether the name stands inside of a text, which may repeat what a caller sent.
    pub(super) is_inner: bool,
}

/// What a failed answer says.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    headers: &'a HeaderMap,
    pub(super) names: Vec<Name>,
    /// The ids and metrics of exceeded quotas.
    pub(super) quotas: Vec<Name>,
    /// The paths of fields that have a value.
    pub(super) fields: Vec<&'static str>,
    /// The messages, without errors inside of them, the outer ones first. A line break stands for
    /// what was left out, so that its neighbors do not join.
    pub(super) texts: Vec<String>,
    pub(super) times: Times,
    /// The status of a failure that the error states.
    pub(super) status: Option<StatusCode>,
    now: SystemTime,
}

impl<'a> Evidence<'a> {
    /// Reads an answer with this error in its body; `now` is the wall clock, for dates.
    pub(super) fn read(
        headers: &'a HeaderMap,
        error: &StreamFailure,
        body: &[u8],
        now: SystemTime,
    ) -> Self {
        let mut evidence = Self {
            headers,
            names: Vec::new(),
            quotas: Vec::new(),
            fields: Vec::new(),
            texts: Vec::new(),
            times: Times::of_headers(headers, now),
            status: failure_status(&error.code),
            now,
        };
        let kind = headers.get("x-amzn-errortype").map(HeaderValue::to_str);
        evidence.name(kind.and_then(Result::ok).unwrap_or_default(), false);
        evidence.name(&error.kind, false);
        evidence.name(&error.code, false);
        match serde_json::from_slice::<Value>(body) {
            Ok(body) => {
                evidence.status = evidence.status.or_else(|| stated_status(&body));
                evidence.body(&body, 0);
            }
            Err(_) => evidence.text(&error.message, 0),
        }
        if evidence.texts.is_empty() && !error.message.is_empty() {
            evidence.text(&error.message, 0);
        }
        evidence
    }

    /// Whether the answer has a header: `name`, or `name: value` with a part of its value.
    pub(super) fn has_header(&self, what: &str) -> bool {
        let (name, part) = what.split_once(':').unwrap_or((what, ""));
        let Ok(name) = name.trim().parse::<HeaderName>() else {
            return false;
        };
        let values = self.headers.get_all(name).into_iter();
        let mut texts = values.filter_map(|value| value.to_str().ok());
        texts.any(|text| super::prose::has(text, part.trim()) || part.trim().is_empty())
    }

    /// The outer names: those that a caller cannot have written.
    pub(super) fn structured_names(&self) -> impl Iterator<Item = &str> {
        let names = self.names.iter().filter(|name| !name.is_inner);
        names.map(|name| &*name.text)
    }

    /// The status that an answer with these names has.
    pub(super) fn named_status(&self) -> Option<u16> {
        const STATUSES: [(&str, u16); 4] = [
            ("invalid_request_error", 400),
            ("Validation", 400),
            ("not_found_error", 404),
            ("permission_error", 403),
        ];
        let is_known = |known: &str| self.structured_names().any(|name| is_named(known, name));
        let status = STATUSES.into_iter().find(|(known, _)| is_known(known));
        status.map(|(_, status)| status)
    }

    fn name(&mut self, name: &str, is_inner: bool) {
        let is_known = |known: &Name| known.text == name && known.is_inner == is_inner;
        if !name.is_empty() && self.names.len() < MAX_ITEMS && !self.names.iter().any(is_known) {
            let text = name.to_owned();
            self.names.push(Name { text, is_inner });
        }
    }

    /// Reads a whole body, or at a `depth` above 0 one that stands inside of a text.
    fn body(&mut self, body: &Value, depth: usize) {
        let root = body.get(0).unwrap_or(body);
        let error = error_in(root);
        // The error's own object comes first, then what stands around it.
        self.object(error, depth);
        self.object(&error["error"], depth);
        self.object(&error["innererror"], depth);
        for key in ["errors", "details"] {
            for object in [error, root] {
                for item in object[key].as_array().into_iter().flatten().take(8) {
                    self.object(item, depth);
                }
            }
        }
        self.object(&root["base_resp"], depth);
        self.object(&root["detail"], depth);
        self.object(root, depth);
        self.metadata(&error["metadata"], depth);
        if let Some(text) = error.as_str() {
            self.word_or_text(text, depth);
        }
    }

    fn object(&mut self, object: &Value, depth: usize) {
        let Some(members) = object.as_object() else {
            return;
        };
        for key in NAME_KEYS {
            match members.get(key) {
                // The type of a flat event is only the name of the event.
                Some(Value::String(name)) if key == "type" && is_event(name) => {}
                Some(Value::String(name)) => self.name(cut(name, 256), depth > 0),
                Some(Value::Number(number)) => self.name(&number.to_string(), depth > 0),
                _ => {}
            }
        }
        for key in TEXT_KEYS {
            if let Some(Value::String(text)) = members.get(key) {
                self.text(text, depth);
            }
        }
        self.times.add_object(object, depth > 0, self.now);
        let violations = object["violations"].as_array();
        for violation in violations.into_iter().flatten().take(8) {
            for key in ["quotaId", "quotaMetric"] {
                if let Some(quota) = violation[key].as_str() {
                    let text = cut(quota, 256).to_owned();
                    let is_inner = depth > 0;
                    self.quotas.push(Name { text, is_inner });
                }
            }
        }
    }

    /// Reads what OpenRouter adds to an error.
    fn metadata(&mut self, metadata: &Value, depth: usize) {
        if depth > 0 {
            return;
        }
        let has = |field: &&str| match field.strip_prefix("metadata.") {
            Some("reasons") => metadata["reasons"].is_array(),
            Some(key) => metadata[key].is_string(),
            None => false,
        };
        self.fields.extend(FIELDS.into_iter().filter(has));
        self.times.add_header_object(&metadata["headers"], self.now);
        for key in ["error_type", "limit_source"] {
            if let Some(name) = metadata[key].as_str() {
                self.name(name, false);
            }
        }
        if let Some(raw) = metadata["raw"].as_str() {
            self.text(raw, depth);
        }
    }

    /// Reads an error that is a text: one word without spaces is a name.
    fn word_or_text(&mut self, text: &str, depth: usize) {
        let is_word = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
        if is_word {
            // It may be a caller's: an upstream that answers with a bare text checks little.
            self.name(cut(text, 256), true);
        }
        self.text(text, depth);
    }

    /// Reads a message: errors inside of it first, then what is prose.
    fn text(&mut self, text: &str, depth: usize) {
        let text = cut(text.trim(), MAX_TEXT);
        if text.is_empty() || self.texts.len() >= MAX_ITEMS {
            return;
        }
        let Some((before, inner, rest)) = embedded(text).filter(|_| depth < MAX_DEPTH) else {
            self.times.add_text(text, self.now);
            if !self.texts.iter().any(|known| known == text) {
                self.texts.push(text.to_owned());
            }
            return;
        };
        let prose = format!("{}\n{}", before.trim_end(), rest.trim_start());
        if !prose.trim().is_empty() {
            self.times.add_text(&prose, self.now);
            self.texts.push(prose);
        }
        self.body(&inner, depth + 1);
    }
}

/// The status that an error states beside its code, or that stands beside the error.
fn stated_status(body: &Value) -> Option<StatusCode> {
    let root = body.get(0).unwrap_or(body);
    let places = [error_in(root), root].into_iter();
    let mut values = places.flat_map(|object| STATUS_KEYS.map(|key| &object[key]));
    values.find_map(|value| match value {
        Value::String(text) => failure_status(text),
        Value::Number(number) => failure_status(&number.to_string()),
        _ => None,
    })
}

/// Reads a text as a status if it is a number from 400 to 599; some providers use other numbers.
fn failure_status(text: &str) -> Option<StatusCode> {
    let status: StatusCode = text.parse().ok()?;
    (status.is_client_error() || status.is_server_error()).then_some(status)
}

fn is_event(name: &str) -> bool {
    name == "error" || name.starts_with("response.")
}

/// Finds an error inside of a text, as JSON or as Python writes it: the text before it, the error,
/// and the text behind it.
fn embedded(text: &str) -> Option<(&str, Value, &str)> {
    let starts = text.match_indices('{').take(8);
    for (at, _) in starts {
        let (before, from) = text.split_at(at);
        let mut values = serde_json::Deserializer::from_str(from).into_iter::<Value>();
        if let Some(Ok(value)) = values.next() {
            if value.as_object().is_some_and(|object| !object.is_empty()) {
                return Some((before, value, &from[values.byte_offset()..]));
            }
        }
        if let Some((value, length)) = python(from) {
            return Some((before, value, &from[length..]));
        }
    }
    None
}

/// Reads a dictionary as Python writes it, with single quotes; also returns its length.
fn python(text: &str) -> Option<(Value, usize)> {
    if !text.starts_with("{'") {
        return None;
    }
    let mut json = String::with_capacity(text.len());
    let mut rest = text;
    let mut depth = 0_usize;
    while let Some(first) = rest.chars().next() {
        match first {
            '\'' | '"' => {
                let (string, length) = python_string(rest, first)?;
                json.push_str(&Value::String(string).to_string());
                rest = &rest[length..];
                continue;
            }
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        let word = ["None", "True", "False"]
            .into_iter()
            .find(|word| rest.starts_with(word));
        if let Some(word) = word {
            json.push_str(match word {
                "None" => "null",
                "True" => "true",
                _ => "false",
            });
            rest = &rest[word.len()..];
            continue;
        }
        json.push(first);
        rest = &rest[first.len_utf8()..];
        if depth == 0 {
            let length = text.len() - rest.len();
            return Some((serde_json::from_str(&json).ok()?, length));
        }
    }
    None
}

fn python_string(text: &str, quote: char) -> Option<(String, usize)> {
    let mut string = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => match chars.next()?.1 {
                'n' => string.push('\n'),
                't' => string.push('\t'),
                other => string.push(other),
            },
            char if char == quote => return Some((string, at + 1)),
            char => string.push(char),
        }
    }
    None
}

/// Whether an error's `name`, without AWS's additions, is the listed name `known`.
pub(super) fn is_named(known: &str, name: &str) -> bool {
    let name = bare(name);
    name == bare(known) || starts_lower(bare(known), name)
}

/// Removes AWS's additions from an error name.
///
/// AWS adds a namespace before an error name or an address after it, and in most answers
/// the suffix `Exception`.
fn bare(name: &str) -> &str {
    let name = name.split_once('#').map_or(name, |(_, name)| name);
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    name.strip_suffix("Exception").unwrap_or(name)
}

/// Whether `name` equals `known`, except for a lower-case first letter, as in AWS's streams.
fn starts_lower(known: &str, name: &str) -> bool {
    known.get(1..) == name.get(1..)
        && known.get(..1).map(str::to_ascii_lowercase).as_deref() == name.get(..1)
}
