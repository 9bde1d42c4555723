//! What a caller sends: one JSON object in each text frame.

use std::{borrow::Cow, collections::HashMap, fmt};

use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::frames::ErrorFrame;

/// The most characters of a lane's name.
const LONGEST_NAME: usize = 256;

/// The members of an object that are looked through one by one.
const FEW: usize = 32;

/// The most bytes of the id of a response.
const LONGEST_ID: usize = 256;

const METADATA: &str = "client_metadata";

/// What a key of `client_metadata` begins with that stands for a header of the request.
const HEADER: &str = "ws_request_header_";

/// An event of a caller.
#[derive(Debug)]
pub(super) enum ClientEvent {
    Create(Box<Create>),
    /// User input for a running response, which no upstream gets: the input comes back.
    Steer(Steer),
    /// The caller wants no more of the response with this id, and keeps what it has.
    Interrupt(String),
    /// An event to which no answer is due.
    Ignored,
}

/// A `response.steer`.
#[derive(Debug)]
pub(super) struct Steer {
    /// The value of `input`, as JSON.
    pub(super) input: String,
    pub(super) previous: Option<String>,
    pub(super) lane: Option<String>,
}

/// A `response.create`, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Create {
    /// The lane; `None` is the default one.
    pub(super) lane: Option<String>,
    /// Whether the model shall answer. Otherwise the input is only kept.
    pub(super) generates: bool,
    /// The response that this one continues.
    pub(super) previous: Option<String>,
    /// Whether an upstream may know the response that this one continues.
    pub(super) may_be_stored: bool,
    /// The members of the request's body but `input` and those of the transport, without braces:
    /// `"model":"m","tools":[]`.
    pub(super) fields: String,
    /// The value of `input`, as it was sent.
    pub(super) input: Option<String>,
    /// The value of `model`, as JSON.
    pub(super) model: Option<String>,
    /// Headers that hold for this response instead of those of the upgrade.
    pub(super) headers: HeaderMap,
}

/// The members of a JSON object, in their order; of a name that stands twice, the last value.
#[derive(Debug, Default)]
pub(super) struct Members<'a>(pub(super) Vec<(Cow<'a, str>, &'a RawValue)>);

/// A text that borrows unless it has an escape.
#[derive(Deserialize)]
struct JsonText<'a>(#[serde(borrow)] Cow<'a, str>);

impl ClientEvent {
    /// Reads the text of a frame.
    ///
    /// # Errors
    ///
    /// The frame that tells the caller what is wrong.
    pub(super) fn read(text: &str) -> Result<Self, Box<ErrorFrame>> {
        let Ok(members) = serde_json::from_str::<Members<'_>>(text) else {
            let error = ErrorFrame::refusal("invalid_json", "The message is not a JSON object.");
            return Err(Box::new(error));
        };
        let Some(kind) = members.text("type") else {
            let message = "The message has no `type`, or it is not a string.";
            let error = ErrorFrame::refusal("invalid_type", message);
            return Err(Box::new(error.param("type")));
        };
        match &*kind {
            "response.create" => Create::read(&members).map(|it| Self::Create(Box::new(it))),
            "response.processed" => Ok(Self::Ignored),
            // An interrupt of a response that is through needs no answer, either.
            "response.interrupt" => Ok(match members.text("response_id") {
                Some(id) => Self::Interrupt(id.into_owned()),
                None => Self::Ignored,
            }),
            "response.steer" => Ok(Self::Steer(Steer {
                input: members.get("input").map_or("[]", RawValue::get).to_owned(),
                previous: members.text("previous_response_id").map(Cow::into_owned),
                lane: lane(&members)?,
            })),
            other => {
                let shown: String = other.chars().take(64).collect();
                let message = format!(
                    "The gateway does not know the event {shown:?}: it takes `response.create`."
                );
                let error = ErrorFrame::refusal("unknown_event", &message);
                Err(Box::new(
                    error.param("type").lane(lane(&members).ok().flatten()),
                ))
            }
        }
    }
}

impl Create {
    fn read(members: &Members<'_>) -> Result<Self, Box<ErrorFrame>> {
        let lane = lane(members)?;
        let wrong = |param: &str, message: &str| {
            let error = ErrorFrame::refusal("invalid_type", message);
            Box::new(error.param(param).lane(lane.clone()))
        };
        let mut create = Self {
            generates: true,
            may_be_stored: true,
            ..Self::default()
        };
        for (name, value) in &members.0 {
            let raw = value.get();
            match &**name {
                // `stream_id` was read above; the bridge sets `stream` itself.
                "type" | "stream_id" | "stream" => {}
                "generate" => match raw {
                    "true" | "null" => {}
                    "false" => create.generates = false,
                    _ => return Err(wrong("generate", "`generate` is not a boolean.")),
                },
                "previous_response_id" => {
                    if raw == "null" {
                        continue;
                    }
                    let id = text_of(value).filter(|id| id.len() <= LONGEST_ID);
                    let Some(id) = id else {
                        let message = "`previous_response_id` is neither null nor a string of up to 256 bytes.";
                        return Err(wrong("previous_response_id", message));
                    };
                    create.previous = Some(id.into_owned());
                }
                "input" => create.input = Some(raw.to_owned()),
                _ => {
                    match &**name {
                        "store" => create.may_be_stored = raw != "false",
                        "model" => create.model = Some(raw.to_owned()),
                        "client_metadata" => {
                            create.push_metadata(value);
                            continue;
                        }
                        _ => {}
                    }
                    push_member(&mut create.fields, name, raw);
                }
            }
        }
        create.lane = lane;
        Ok(create)
    }

    /// Takes the metadata: what stands for headers, and for the body what a POST would have.
    fn push_metadata(&mut self, value: &RawValue) {
        let Ok(metadata) = serde_json::from_str::<Members<'_>>(value.get()) else {
            return push_member(&mut self.fields, METADATA, value.get());
        };
        let mut rest = String::new();
        for (key, value) in &metadata.0 {
            let named = header_of(key).and_then(|name| HeaderName::try_from(&*name).ok());
            let text = text_of(value).and_then(|it| HeaderValue::try_from(&*it).ok());
            if let Some((name, text)) = named.zip(text) {
                self.headers.insert(name, text);
            }
            if !key.starts_with(HEADER) && !key.starts_with("x-codex-ws-") {
                push_member(&mut rest, key, value.get());
            }
        }
        push_member(&mut self.fields, METADATA, &format!("{{{rest}}}"));
    }

    /// The bytes that the event takes while it waits.
    pub(super) fn len(&self) -> usize {
        let texts = [&self.input, &self.previous, &self.model, &self.lane];
        let texts = texts.into_iter().flatten().map(String::len).sum::<usize>();
        let headers = self.headers.iter();
        let headers = headers.map(|(name, value)| name.as_str().len() + value.len());
        self.fields.len() + texts + headers.sum::<usize>()
    }

    /// The items of the input, without brackets: `{..},{..}`.
    ///
    /// # Errors
    ///
    /// If the input is neither text nor a list.
    pub(super) fn items(&self) -> Result<Cow<'_, str>, Box<ErrorFrame>> {
        let input = self.input.as_deref().unwrap_or("[]").trim();
        if input == "null" {
            return Ok(Cow::Borrowed(""));
        }
        if input.starts_with('"') {
            let item = format!(r#"{{"type":"message","role":"user","content":{input}}}"#);
            return Ok(Cow::Owned(item));
        }
        let list = input.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
        list.map(|items| Cow::Borrowed(items.trim()))
            .ok_or_else(|| {
                let message = "`input` is neither a string nor a list.";
                let error = ErrorFrame::refusal("invalid_type", message);
                Box::new(error.param("input").lane(self.lane.clone()))
            })
    }
}

/// Appends `"name":value` behind a comma, unless `members` is empty.
pub(super) fn push_member(members: &mut String, name: &str, value: &str) {
    if !members.is_empty() {
        members.push(',');
    }
    members.push_str(&serde_json::Value::from(name).to_string());
    members.push(':');
    members.push_str(value);
}

/// The name of the lane; `None` is the default one.
fn lane(members: &Members<'_>) -> Result<Option<String>, Box<ErrorFrame>> {
    let Some(value) = members.get("stream_id") else {
        return Ok(None);
    };
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let name = text_of(value)
        .filter(|name| (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(is_allowed));
    name.map(|name| Some(name.into_owned())).ok_or_else(|| {
        let message = "`stream_id` is not a string of 1 to 256 characters of A-Z, a-z, 0-9, `_`, `.` \
                       and `-`.";
        let error = ErrorFrame::refusal("invalid_stream_id", message);
        Box::new(error.param("stream_id"))
    })
}

/// The header that a key of `client_metadata` stands for.
///
/// A socket outlives the turns of its caller, so what describes a turn is right here and stale in the
/// headers of the upgrade. Codex names them as its POSTs do, or behind [`HEADER`].
fn header_of(key: &str) -> Option<Cow<'_, str>> {
    const RUN: [&str; 3] = ["x-run-id", "x-session-id", "x-client-request-id"];
    match key {
        "session_id" => Some("session-id".into()),
        "thread_id" => Some("thread-id".into()),
        _ => match key.strip_prefix(HEADER) {
            Some(name) if matches!(name, "traceparent" | "tracestate") => Some(name.into()),
            Some(name) if name.starts_with("x_openai_") => Some(name.replace('_', "-").into()),
            Some(_) => None,
            None => {
                // Codex' POST has the id of the installation in its body alone, too.
                let is_of_body = key.starts_with("x-codex-ws-") || key == "x-codex-installation-id";
                let is_known = key.starts_with("x-codex-") && !is_of_body
                    || key.starts_with("x-openai-")
                    || RUN.contains(&key);
                is_known.then_some(Cow::Borrowed(key))
            }
        },
    }
}

fn text_of(value: &RawValue) -> Option<Cow<'_, str>> {
    let text = serde_json::from_str::<JsonText<'_>>(value.get());
    text.ok().map(|text| text.0)
}

impl<'a> Members<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a RawValue> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value)
    }

    /// The value of a member that is a text.
    pub(super) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        self.get(name).and_then(text_of)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members: Vec<(Cow<'de, str>, &'de RawValue)> = Vec::new();
        // Made for an object with many members: to look through them for each would take for ever.
        let mut places: HashMap<Cow<'de, str>, usize> = HashMap::new();
        while let Some(JsonText(name)) = map.next_key()? {
            let value = map.next_value()?;
            let known = match members.len() {
                FEW.. => places.get(&name).copied(),
                _ => members.iter().position(|(known, _)| *known == name),
            };
            match known {
                Some(known) => members[known].1 = value,
                None => {
                    if members.len() == FEW - 1 {
                        let named = members.iter().enumerate();
                        places.extend(named.map(|(at, (name, _))| (name.clone(), at)));
                    }
                    if members.len() >= FEW - 1 {
                        places.insert(name.clone(), members.len());
                    }
                    members.push((name, value));
                }
            }
        }
        Ok(Members(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(text: &str) -> Create {
        match ClientEvent::read(text) {
            Ok(ClientEvent::Create(create)) => *create,
            other => panic!("{other:?}"),
        }
    }

    fn code(text: &str) -> String {
        match ClientEvent::read(text) {
            Err(error) => error.code().to_owned(),
            Ok(event) => panic!("{event:?}"),
        }
    }

    #[test]
    fn what_belongs_to_the_transport_leaves_the_body() {
        let create = create(
            r#"{"type":"response.create","model":"m","stream":false,"stream_id":"a.b-c_1",
                "generate":false,"previous_response_id":"resp_1","store":false,"input":[ 1 , 2 ],
                "temperature":1.0,"unknown":{"seed":18446744073709551617}}"#,
        );
        assert_eq!(create.lane.as_deref(), Some("a.b-c_1"));
        assert!(!create.generates && !create.may_be_stored);
        assert_eq!(create.previous.as_deref(), Some("resp_1"));
        let expected = r#""model":"m","store":false,"temperature":1.0,"unknown":{"seed":18446744073709551617}"#;
        assert_eq!(create.fields, expected);
        assert_eq!(create.items().unwrap(), "1 , 2");
    }

    #[test]
    fn input_is_text_a_list_or_absent() {
        let items = |input: &str| {
            let event = format!(r#"{{"type":"response.create"{input}}}"#);
            create(&event).items().map(Cow::into_owned).ok()
        };
        let message = r#"{"type":"message","role":"user","content":"hi \"you\""}"#;
        assert_eq!(items(r#","input":"hi \"you\"""#).as_deref(), Some(message));
        assert_eq!(items(r#","input":[]"#).as_deref(), Some(""));
        assert_eq!(items(r#","input":null"#).as_deref(), Some(""));
        assert_eq!(items("").as_deref(), Some(""));
        assert_eq!(items(r#","input":7"#), None);
    }

    /// A search through all members for each of them takes minutes.
    #[test]
    fn an_object_with_many_members_is_read_in_no_time() {
        let many = |count: usize| {
            (0..count)
                .map(|number| format!(r#","k{number}":{number}"#))
                .collect::<String>()
        };
        let (some, more) = (many(200_000), many(40));
        let event = create(&format!(
            r#"{{"type":"response.create","model":"m"{some}{more},"client_metadata":{{"a":1{some}}}}}"#
        ));
        assert_eq!(
            event.fields.matches("\"k39\":").count(),
            2,
            "once here, and once in the metadata"
        );
        assert!(event.fields.contains("\"k199999\":199999"));
    }

    #[test]
    fn the_last_of_two_members_with_one_name_counts() {
        let create = create(
            r#"{"type":"response.processed","type":"response.create","model":"a","model":"b"}"#,
        );
        assert_eq!(create.fields, r#""model":"b""#);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, expected) in [
            ("", "invalid_json"),
            ("[]", "invalid_json"),
            (r#"{"type":"response.create""#, "invalid_json"),
            ("{}", "invalid_type"),
            (r#"{"type":7}"#, "invalid_type"),
            (r#"{"type":"response.cancel"}"#, "unknown_event"),
            (
                r#"{"type":"response.create","stream_id":""}"#,
                "invalid_stream_id",
            ),
            (
                r#"{"type":"response.create","stream_id":"a b"}"#,
                "invalid_stream_id",
            ),
            (
                r#"{"type":"response.create","stream_id":null}"#,
                "invalid_stream_id",
            ),
            (
                r#"{"type":"response.create","generate":"no"}"#,
                "invalid_type",
            ),
            (
                r#"{"type":"response.create","previous_response_id":1}"#,
                "invalid_type",
            ),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
        let long = "a".repeat(257);
        let long = format!(r#"{{"type":"response.create","stream_id":"{long}"}}"#);
        assert_eq!(code(&long), "invalid_stream_id");
    }

    #[test]
    fn metadata_of_the_turn_becomes_headers() {
        let create = create(
            r#"{"type":"response.create","client_metadata":{"session_id":"s","x-codex-turn-metadata":
                "{\"turn_id\":\"t\"}","ws_request_header_traceparent":"00-1","x-api-key":"no",
                "x-codex-installation-id":"i","ws_request_header_authorization":"no","turn_id":"t","x-codex-bad":"a\nb","x-run-id":"r",
                "ws_request_header_x_openai_internal_codex_responses_lite":"true",
                "x-codex-ws-stream-request-start-ms":"7"}}"#,
        );
        // What is of the transport leaves the body, as in a POST.
        let body: serde_json::Value =
            serde_json::from_str(&format!("{{{}}}", create.fields)).unwrap();
        let keys: Vec<_> = body["client_metadata"]
            .as_object()
            .unwrap()
            .keys()
            .collect();
        assert_eq!(
            keys,
            [
                "session_id",
                "turn_id",
                "x-api-key",
                "x-codex-bad",
                "x-codex-installation-id",
                "x-codex-turn-metadata",
                "x-run-id"
            ]
        );
        let mut headers: Vec<_> = create
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        headers.sort_unstable();
        let expected = [
            ("session-id", "s"),
            ("traceparent", "00-1"),
            ("x-codex-turn-metadata", r#"{"turn_id":"t"}"#),
            ("x-openai-internal-codex-responses-lite", "true"),
            ("x-run-id", "r"),
        ];
        assert_eq!(headers, expected);
    }
}
