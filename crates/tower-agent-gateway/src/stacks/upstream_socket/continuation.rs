//! Which part of a request's input an upstream has in memory already.
//!
//! Digests stand for the items of an input: a conversation of a megabyte costs a lane some kilobytes
//! between its turns.

use std::{borrow::Cow, collections::BTreeMap};

use ring::digest::{Context, SHA256};
use serde_json::{Value, value::RawValue};

/// The most items of a conversation that is continued; 64 bytes of each are kept.
const MOST_ITEMS: usize = 16 * 1024;

/// The fields that may change between two turns.
const FREE: [&str; 2] = ["input", METADATA];

const METADATA: &str = "client_metadata";

const PREVIOUS: &str = "previous_response_id";

type Digest = [u8; 32];

/// A request for a response, by its fields.
#[derive(Debug)]
pub(super) struct CreateRequest<'a> {
    fields: BTreeMap<String, &'a RawValue>,
    /// The items of the input; `None` if it is neither a list nor a text.
    items: Option<Vec<Cow<'a, RawValue>>>,
}

/// What was sent of a conversation, while its response runs.
#[derive(Debug)]
pub(super) struct SentTurn {
    /// The fields that may not change.
    fields: Digest,
    input: Vec<InputItem>,
    /// The items of the response so far.
    output: Vec<OutputItem>,
}

#[derive(Debug)]
struct OutputItem {
    /// The item without what a caller may leave out of it.
    value: Digest,
    /// Whether a caller may leave out the item: reasoning of which only the upstream has the content.
    is_hidden: bool,
}

/// A response that a request may continue.
#[derive(Debug)]
pub(super) struct Turn {
    id: String,
    sent: SentTurn,
}

#[derive(Clone, Debug)]
struct InputItem {
    text: Digest,
    value: Digest,
}

impl<'a> CreateRequest<'a> {
    /// Reads a body; `None` if it is not a JSON object, or asks for no stream.
    pub(super) fn read(body: &'a [u8]) -> Option<Self> {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(body).ok()?;
        let is = |name: &str, value: &str| fields.get(name).is_some_and(|it| it.get() == value);
        if !is("stream", "true") {
            return None;
        }
        let items = fields.get("input").and_then(|input| items(input));
        let items = items.filter(|items| items.len() <= MOST_ITEMS);
        Some(Self { fields, items })
    }

    /// Writes the event that asks for the response, as a continuation of `turn` if it is one.
    ///
    /// Returns what was sent too, unless the next request cannot continue it.
    ///
    /// `of_turn` has members for `client_metadata`, name and value: an upgrade tells what holds for all turns
    /// of a socket, and the event what holds for this one. A request without metadata gets none.
    pub(super) fn event(&self, turn: Option<&Turn>, of_turn: &[(String, String)]) -> CreateEvent {
        let known = turn.map_or(&[][..], |turn| &turn.sent.input);
        let sent = self.items.as_ref().map(|items| SentTurn {
            fields: self.fixed_fields(),
            input: input_items(items, known),
            output: Vec::new(),
        });
        let continued = turn.zip(sent.as_ref()).and_then(|(turn, sent)| {
            let items = self.items.as_ref()?;
            Some((&*turn.id, turn.rest(sent, items)?))
        });
        CreateEvent {
            text: self.write(
                continued,
                self.fields.get(METADATA).map_or(&[], |_| of_turn),
            ),
            is_continuation: continued.is_some(),
            sent,
        }
    }

    /// The metadata with further members.
    fn metadata(&self, of_turn: &[(String, String)]) -> String {
        let given = self.fields.get(METADATA).map_or("{}", |value| value.get());
        let given = serde_json::from_str::<serde_json::Map<String, Value>>(given);
        let mut metadata = given.unwrap_or_default();
        for (name, value) in of_turn {
            metadata.insert(name.clone(), value.as_str().into());
        }
        Value::Object(metadata).to_string()
    }

    /// The digest of the fields that may not change.
    fn fixed_fields(&self) -> Digest {
        let mut context = Context::new(&SHA256);
        for (name, value) in &self.fields {
            // A response that the caller names is a part of the conversation; `null` names none.
            let is_none = name == PREVIOUS && value.get() == "null";
            if !is_none && !FREE.contains(&&**name) {
                write_text(name, &mut context);
                context.update(&value_digest(value, |_| {}));
            }
        }
        finished(context)
    }

    fn write(
        &self,
        continued: Option<(&str, &[Cow<'_, RawValue>])>,
        of_turn: &[(String, String)],
    ) -> Vec<u8> {
        let lengths = self.fields.iter().map(|(name, value)| {
            let is_left_out = continued.is_some() && name == "input";
            name.len() + 4 + if is_left_out { 0 } else { value.get().len() }
        });
        let mut event = Vec::with_capacity(lengths.sum::<usize>() + 64);
        event.extend(br#"{"type":"response.create""#);
        for (name, value) in &self.fields {
            let is_replaced = match &**name {
                "type" => true,
                "input" | PREVIOUS => continued.is_some(),
                METADATA => !of_turn.is_empty(),
                _ => false,
            };
            if !is_replaced {
                write_field(name, value.get(), &mut event);
            }
        }
        if !of_turn.is_empty() {
            write_field(METADATA, &self.metadata(of_turn), &mut event);
        }
        if let Some((id, rest)) = continued {
            write_field(PREVIOUS, &Value::from(id).to_string(), &mut event);
            let rest: Vec<_> = rest.iter().map(|item| item.get()).collect();
            write_field("input", &format!("[{}]", rest.join(",")), &mut event);
        }
        event.push(b'}');
        event
    }
}

/// The event that asks an upstream for a response.
pub(super) struct CreateEvent {
    pub(super) text: Vec<u8>,
    pub(super) is_continuation: bool,
    /// `None` if no request can continue the response.
    pub(super) sent: Option<SentTurn>,
}

impl SentTurn {
    /// Adds an item of the response. Returns whether the response can still be continued.
    pub(super) fn push_output(&mut self, item: &RawValue) -> bool {
        let mut is_hidden = false;
        let value = value_digest(item, |item| {
            is_hidden = is_hidden_reasoning(item);
            strip(item);
        });
        self.output.push(OutputItem { value, is_hidden });
        self.input.len() + self.output.len() <= MOST_ITEMS
    }

    /// The response ended, and has this id.
    pub(super) const fn ended(self, id: String) -> Turn {
        Turn { id, sent: self }
    }
}

impl Turn {
    /// The items of a request that follow this response; `None` if the request does not continue it.
    fn rest<'a, 'b>(
        &self,
        request: &SentTurn,
        items: &'b [Cow<'a, RawValue>],
    ) -> Option<&'b [Cow<'a, RawValue>]> {
        let SentTurn {
            fields,
            input,
            output,
        } = &self.sent;
        let (_, mut rest) = items.split_at_checked(input.len())?;
        let mut pairs = input.iter().zip(&request.input);
        let is_same = request.fields == *fields && pairs.all(|(one, two)| one.value == two.value);
        for known in output.iter().filter(|_| is_same) {
            match rest.split_first() {
                Some((item, after)) if value_digest(item, strip) == known.value => rest = after,
                _ if known.is_hidden => {}
                _ => return None,
            }
        }
        is_same.then_some(rest)
    }
}

/// The items of an input: of a list, or the one that a text stands for.
fn items(input: &RawValue) -> Option<Vec<Cow<'_, RawValue>>> {
    let text = input.get();
    if !text.starts_with('"') {
        let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        return Some(items.into_iter().map(Cow::Borrowed).collect());
    }
    let item = format!(r#"{{"type":"message","role":"user","content":{text}}}"#);
    Some(vec![Cow::Owned(RawValue::from_string(item).ok()?)])
}

/// Whether an item is reasoning of which only the upstream has the content.
fn is_hidden_reasoning(item: &Value) -> bool {
    let is_empty = |name: &str| match &item[name] {
        Value::Null => true,
        Value::Array(parts) => parts.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    };
    item["type"] == "reasoning" && is_empty("encrypted_content") && is_empty("content")
}

/// Removes what a caller may leave out of an output item that it sends back.
fn strip(item: &mut Value) {
    if let Some(item) = item.as_object_mut() {
        item.remove("id");
        if item.get("type").is_some_and(|kind| kind == "message") {
            item.remove("status");
        }
    }
}

/// The items of an input. One that is written as the `known` one at its place is not parsed again.
fn input_items(items: &[Cow<'_, RawValue>], known: &[InputItem]) -> Vec<InputItem> {
    let mut known = known.iter();
    let read = |item: &Cow<'_, RawValue>| {
        let text = ring::digest::digest(&SHA256, item.get().as_bytes());
        let text = to_digest(text.as_ref());
        match known.next().filter(|known| known.text == text) {
            Some(known) => known.clone(),
            None => InputItem {
                text,
                value: value_digest(item, |_| {}),
            },
        }
    };
    items.iter().map(read).collect()
}

/// The digest of a JSON value, after a `change`, whatever the order of its keys and its white space.
///
/// A value that is nested too deep to be read has the digest of its text.
fn value_digest(value: &RawValue, change: impl FnOnce(&mut Value)) -> Digest {
    let mut context = Context::new(&SHA256);
    match serde_json::from_str::<Value>(value.get()) {
        Ok(mut read) => {
            change(&mut read);
            write_value(&read, &mut context);
        }
        Err(_) => write_text(value.get(), &mut context),
    }
    finished(context)
}

fn write_value(value: &Value, context: &mut Context) {
    match value {
        Value::Null => context.update(b"n"),
        Value::Bool(true) => context.update(b"t"),
        Value::Bool(false) => context.update(b"f"),
        Value::Number(number) => {
            context.update(b"#");
            write_text(&number.to_string(), context);
        }
        Value::String(text) => {
            context.update(b"s");
            write_text(text, context);
        }
        Value::Array(items) => {
            context.update(b"[");
            context.update(&items.len().to_le_bytes());
            items.iter().for_each(|item| write_value(item, context));
        }
        Value::Object(fields) => {
            context.update(b"{");
            context.update(&fields.len().to_le_bytes());
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            for (name, value) in fields {
                write_text(name, context);
                write_value(value, context);
            }
        }
    }
}

/// A text with its length, so that no two sequences of texts are one.
fn write_text(text: &str, context: &mut Context) {
    context.update(&text.len().to_le_bytes());
    context.update(text.as_bytes());
}

fn finished(context: Context) -> Digest {
    to_digest(context.finish().as_ref())
}

/// SHA-256 has 32 bytes.
fn to_digest(bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(bytes);
    digest
}

fn write_field(name: &str, value: &str, event: &mut Vec<u8>) {
    event.push(b',');
    event.extend(Value::from(name).to_string().bytes());
    event.push(b':');
    event.extend(value.bytes());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const QUESTION: &str = r#"{"role":"user","content":"a"}"#;
    const ANSWER: &str =
        r#"{"type":"message","id":"m_1","status":"completed","content":[{"text":"b"}]}"#;

    fn body(fields: &str, items: &[&str]) -> String {
        format!(r#"{{"stream":true,{fields}"input":[{}]}}"#, items.join(","))
    }

    /// The turn of a question and an answer, sent with the tools `[1]`.
    fn turn() -> Turn {
        let first = body(r#""tools":[1],"#, &[QUESTION]);
        let create = CreateRequest::read(first.as_bytes()).unwrap();
        let mut sent = create.event(None, &[]).sent.unwrap();
        assert!(sent.push_output(&RawValue::from_string(ANSWER.to_owned()).unwrap()));
        sent.ended("r_1".to_owned())
    }

    fn event(body: &str) -> Value {
        let turn = turn();
        let event = CreateRequest::read(body.as_bytes()).unwrap();
        let event = event.event(Some(&turn), &[]);
        let text: Value = serde_json::from_slice(&event.text).unwrap();
        assert_eq!(text["previous_response_id"] == "r_1", event.is_continuation);
        text
    }

    #[test]
    fn what_an_upstream_has_is_not_sent_again() {
        let stripped = r#"{"type":"message","content":[{"text":"b"}]}"#;
        let turned = r#"{ "content": [{"text":"b"}], "id": "other", "type":"message" }"#;
        let question = r#"{ "content":"a", "role":"user" }"#;
        for (question, answer) in [(QUESTION, stripped), (QUESTION, ANSWER), (question, turned)] {
            let next = r#"{"role":"user","content":1.0000000000000000001}"#;
            for rest in [&[next][..], &[]] {
                let items = [&[question, answer][..], rest].concat();
                let event = event(&body(
                    r#""client_metadata":{"a":"b"},"tools":[ 1 ],"#,
                    &items,
                ));
                let mut wanted = json!({
                    "type": "response.create", "previous_response_id": "r_1", "stream": true,
                    "client_metadata": {"a": "b"}, "tools": [1], "input": [],
                });
                for item in rest {
                    let item = serde_json::from_str(item).unwrap();
                    wanted["input"].as_array_mut().unwrap().push(item);
                }
                assert_eq!(event, wanted);
            }
        }
    }

    #[test]
    fn another_conversation_is_sent_in_full() {
        let stripped = r#"{"type":"message","content":[{"text":"b"}]}"#;
        let tools = r#""tools":[1],"#;
        for (fields, items) in [
            // Another field, one less, one more.
            (r#""tools":[2],"#, &[QUESTION, stripped][..]),
            ("", &[QUESTION, stripped]),
            (r#""tools":[1],"store":false,"#, &[QUESTION, stripped]),
            // Another question, another answer, an answer that is missing, a call's status.
            (tools, &[r#"{"role":"user","content":"b"}"#, stripped]),
            (
                tools,
                &[QUESTION, r#"{"type":"message","content":[{"text":"c"}]}"#],
            ),
            (tools, &[QUESTION, QUESTION]),
            (tools, &[QUESTION]),
            (tools, &[stripped, QUESTION]),
            (tools, &[]),
            // The conversation begins with another response.
            (
                r#""tools":[1],"previous_response_id":"r_0","#,
                &[QUESTION, stripped],
            ),
        ] {
            let body = body(fields, items);
            let event = event(&body);
            let mut wanted: Value = serde_json::from_str(&body).unwrap();
            wanted["type"] = "response.create".into();
            assert_eq!(event, wanted);
        }
    }

    #[test]
    fn the_text_of_a_request_stays() {
        let body = r#"{"type":"x","stream":true,"n":1.0000000000000000001,"input":[ 1e2 ],"input_":"\u00e4"}"#;
        let create = CreateRequest::read(body.as_bytes()).unwrap();
        let text = String::from_utf8(create.event(None, &[]).text).unwrap();
        assert_eq!(
            text,
            r#"{"type":"response.create","input":[ 1e2 ],"input_":"\u00e4","n":1.0000000000000000001,"stream":true}"#
        );
    }

    #[test]
    fn a_request_without_a_stream_or_a_list_is_known_as_such() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"stream":false}"#,
            r#"{"stream":"true"}"#,
            "{\"stream\":true",
        ] {
            assert!(CreateRequest::read(body.as_bytes()).is_none(), "{body}");
        }
        for input in ["", r#","input":null"#, r#","input":{}"#] {
            let body = format!(r#"{{"stream":true{input}}}"#);
            let create = CreateRequest::read(body.as_bytes()).unwrap();
            assert!(create.event(None, &[]).sent.is_none(), "{body}");
        }
    }

    /// A lane's next input has a list in the place of a text.
    #[test]
    fn a_conversation_that_begins_with_a_text_or_a_response_is_continued() {
        let first = r#"{"stream":true,"input":"a","previous_response_id":"r_0"}"#;
        let create = CreateRequest::read(first.as_bytes()).unwrap();
        let event = create.event(None, &[]);
        let text: Value = serde_json::from_slice(&event.text).unwrap();
        assert_eq!(
            (&text["input"], &text[PREVIOUS]),
            (&"a".into(), &"r_0".into())
        );
        let turn = event.sent.unwrap().ended("r_1".to_owned());

        for (id, is_continuation) in [(r#""r_0""#, true), (r#""r_2""#, false), ("null", false)] {
            let item = r#"{"type":"message","role":"user","content":"a"}"#;
            let next = body(&format!(r#""previous_response_id":{id},"#), &[item, "1"]);
            let create = CreateRequest::read(next.as_bytes()).unwrap();
            let event = create.event(Some(&turn), &[]);
            assert_eq!(event.is_continuation, is_continuation, "{id}");
            if is_continuation {
                let text = r#"{"type":"response.create","stream":true,"previous_response_id":"r_1","input":[1]}"#;
                assert_eq!(event.text, text.as_bytes());
            }
        }
    }

    /// A lane leaves out reasoning that no other upstream could read.
    #[test]
    fn hidden_reasoning_may_be_missing_and_no_other_item() {
        let hidden = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":null}"#;
        let shown = r#"{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}"#;
        let second = r#"{"type":"message","content":"b"}"#;
        let rest = |reasoning: &str, items: &[&str]| {
            let first = body("", &[QUESTION]);
            let create = CreateRequest::read(first.as_bytes()).unwrap();
            let mut sent = create.event(None, &[]).sent.unwrap();
            for item in [reasoning, second] {
                sent.push_output(&RawValue::from_string(item.to_owned()).unwrap());
            }
            let turn = sent.ended("r_1".to_owned());
            let next = body("", items);
            let create = CreateRequest::read(next.as_bytes()).unwrap();
            let event = create.event(Some(&turn), &[]);
            let text: Value = serde_json::from_slice(&event.text).unwrap();
            event.is_continuation.then(|| text["input"].clone())
        };
        assert_eq!(rest(hidden, &[QUESTION, second, "1"]), Some(json!([1])));
        assert_eq!(rest(hidden, &[QUESTION, hidden, second]), Some(json!([])));
        assert_eq!(rest(shown, &[QUESTION, shown, second]), Some(json!([])));
        assert_eq!(rest(shown, &[QUESTION, second, "1"]), None);
        assert_eq!(rest(hidden, &[QUESTION, "1"]), None);
    }

    /// A status of anything but a message is a part of what it says.
    #[test]
    fn items_that_differ_in_more_than_an_id_are_others() {
        let digest = |text: &str| {
            let item = RawValue::from_string(text.to_owned()).unwrap();
            value_digest(&item, strip)
        };
        let call = r#"{"type":"shell_call","status":"completed"}"#;
        assert_ne!(digest(call), digest(r#"{"type":"shell_call"}"#));
        assert_eq!(
            digest(call),
            digest(r#"{"id":"1","status":"completed","type":"shell_call"}"#)
        );
        assert_ne!(digest(r#"["a","b"]"#), digest(r#"["ab"]"#));
        assert_ne!(digest(r#"{"a":"b"}"#), digest(r#"["a","b"]"#));
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert_eq!(digest(&deep), digest(&deep));
        assert_ne!(digest(&deep), digest(&deep.replacen("[", "[ ", 1)));
    }

    #[test]
    fn a_conversation_of_too_many_items_is_not_continued() {
        let many = vec!["1"; MOST_ITEMS];
        let sent = |items: &[&str]| {
            let body = body("", items);
            let create = CreateRequest::read(body.as_bytes()).unwrap();
            create.event(None, &[]).sent
        };
        let item = RawValue::from_string("1".to_owned()).unwrap();
        assert!(!sent(&many).unwrap().push_output(&item));
        assert!(sent(&many[1..]).unwrap().push_output(&item));
        assert!(sent(&[&many[..], &["1"]].concat()).is_none());
    }
}
