//! Tests of the JSON scanner against `serde_json`.

use crate::dialect::Finish;
use proptest::{collection::vec, prelude::*, sample::select};

use super::{
    super::reader::StreamReader,
    kind,
    reference::{self, Outcome},
};
use crate::{
    dialect::{Dialect, StreamState},
    sse::{Event, EventKind, MAX_EVENT, Splitter},
};

const DIALECTS: [Dialect; 3] = [
    Dialect::OpenAiChat,
    Dialect::OpenAiResponses,
    Dialect::Anthropic,
];

const WORDS: [&str; 44] = [
    "choices",
    "delta",
    "content",
    "role",
    "refusal",
    "tool_calls",
    "function_call",
    "reasoning",
    "reasoning_content",
    "reasoning_details",
    "finish_reason",
    "index",
    "text",
    "usage",
    "prompt_tokens",
    "completion_tokens",
    "input_tokens",
    "output_tokens",
    "object",
    "error",
    "chat.completion.chunk",
    "type",
    "sequence_number",
    "response",
    "incomplete_details",
    "reason",
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.created",
    "response.completed",
    "response.failed",
    "message",
    "message_start",
    "message_delta",
    "message_stop",
    "content_block",
    "content_block_start",
    "content_block_delta",
    "text_delta",
    "thinking_delta",
    "thinking",
    "tool_use",
    "ping",
    "stop_reason",
];

#[derive(Clone, Debug)]
enum Json {
    Scalar(String),
    Text(String),
    Array(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// The writer of a JSON document, in one of the many spellings that mean the same.
struct Writer<'a> {
    out: String,
    style: std::iter::Cycle<std::slice::Iter<'a, u8>>,
}

impl Writer<'_> {
    fn write(style: &[u8], json: &Json) -> String {
        let mut writer = Writer {
            out: String::new(),
            style: style.iter().cycle(),
        };
        writer.value(json);
        writer.space();
        writer.out
    }

    fn style(&mut self) -> u8 {
        self.style.next().copied().unwrap_or(0)
    }

    fn space(&mut self) {
        let space = ["", "", "", "", "", " ", "\n", "\t \r", "  "];
        let choice = usize::from(self.style()) % space.len();
        self.out += space[choice];
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        let escape = self.style() % 4 == 0;
        for letter in text.chars() {
            if escape && self.style() % 3 == 0 {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    self.out += &format!("\\u{unit:04X}");
                }
            } else if letter == '/' && escape {
                self.out += "\\/";
            } else {
                let quoted = serde_json::to_string(&letter).unwrap();
                self.out += &quoted[1..quoted.len() - 1];
            }
        }
        self.out.push('"');
    }

    fn value(&mut self, json: &Json) {
        self.space();
        match json {
            Json::Scalar(text) => self.out += text,
            Json::Text(text) => self.text(text),
            Json::Array(items) => self.list('[', items, ']', Self::value),
            Json::Object(members) => self.list('{', members, '}', |writer, (key, value)| {
                writer.space();
                writer.text(key);
                writer.space();
                writer.out.push(':');
                writer.value(value);
            }),
        }
        self.space();
    }

    fn list<T>(&mut self, open: char, items: &[T], close: char, item: impl Fn(&mut Self, &T)) {
        self.out.push(open);
        self.space();
        for (at, value) in items.iter().enumerate() {
            if at > 0 {
                self.out.push(',');
            }
            item(self, value);
        }
        self.space();
        self.out.push(close);
    }
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![4 => select(&WORDS[..]).prop_map(str::to_owned), 1 => any::<String>()]
}

fn scalar() -> impl Strategy<Value = Json> {
    const SCALARS: [&str; 14] = [
        "null",
        "true",
        "false",
        "0",
        "7",
        "-0",
        "-1",
        "1.0",
        "1e3",
        "127",
        "128",
        "18446744073709551615",
        "18446744073709551616",
        "-1.5E-7",
    ];
    prop_oneof![
        3 => select(&SCALARS[..]).prop_map(|text| Json::Scalar(text.into())),
        1 => any::<u64>().prop_map(|number| Json::Scalar(number.to_string())),
        1 => any::<f64>()
            .prop_filter("JSON knows no others", |number| number.is_finite())
            .prop_map(|number| Json::Scalar(number.to_string())),
        3 => word().prop_map(Json::Text),
        1 => Just(Json::Text(String::new())),
        1 => any::<String>().prop_map(Json::Text),
        1 => "[\"\\\\a-c]{0,80}".prop_map(Json::Text),
    ]
}

/// Generates an object with these keys, some of them repeated: the last must win.
fn object(members: Vec<(&'static str, BoxedStrategy<Json>)>) -> BoxedStrategy<Json> {
    let member = select(members)
        .prop_flat_map(|(key, value)| value.prop_map(move |value| (key.to_owned(), value)));
    vec(member, 0..6).prop_map(Json::Object).boxed()
}

/// Generates any JSON value; a key that no judge reads occurs once only.
fn anything() -> BoxedStrategy<Json> {
    scalar()
        .prop_recursive(5, 40, 5, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..5).prop_map(Json::Array),
                vec((word(), inner), 0..5).prop_map(|mut members| {
                    members.sort_by(|one, other| one.0.cmp(&other.0));
                    members.dedup_by(|one, other| one.0 == other.0);
                    Json::Object(members)
                }),
            ]
        })
        .boxed()
}

fn texts(words: &'static [&'static str]) -> BoxedStrategy<Json> {
    prop_oneof![
        5 => select(words).prop_map(|text| Json::Text(text.into())),
        1 => scalar(),
    ]
    .boxed()
}

/// Generates an event in the shape of any dialect, with odd values in some places.
fn event() -> BoxedStrategy<Json> {
    let or_any = |shaped: BoxedStrategy<Json>| prop_oneof![5 => shaped, 1 => anything()].boxed();
    let usage = or_any(object(vec![
        ("prompt_tokens", scalar().boxed()),
        ("completion_tokens", scalar().boxed()),
        ("input_tokens", scalar().boxed()),
        ("output_tokens", scalar().boxed()),
        ("details", anything()),
    ]));
    let part = or_any(object(vec![
        ("type", texts(&["text", "thinking"])),
        ("thinking", anything()),
    ]));
    let parts = vec(part, 0..3).prop_map(Json::Array);
    let delta = or_any(object(vec![
        ("content", anything()),
        ("content", parts.boxed()),
        ("role", scalar().boxed()),
        ("tool_calls", anything()),
        ("function_call", anything()),
        ("refusal", scalar().boxed()),
        ("reasoning", scalar().boxed()),
        ("reasoning_content", scalar().boxed()),
        ("reasoning_details", anything()),
    ]));
    let anthropic_delta = or_any(object(vec![
        (
            "type",
            texts(&["text_delta", "thinking_delta", "signature_delta"]),
        ),
        ("stop_reason", texts(&["end_turn", "refusal"])),
        ("text", scalar().boxed()),
        ("thinking", scalar().boxed()),
        ("signature", scalar().boxed()),
        ("partial_json", scalar().boxed()),
        ("citation", anything()),
    ]));
    let block = or_any(object(vec![
        (
            "type",
            texts(&[
                "text",
                "thinking",
                "tool_use",
                "redacted_thinking",
                "x_tool_result",
            ]),
        ),
        ("text", scalar().boxed()),
        ("thinking", scalar().boxed()),
        ("usage", usage.clone()),
    ]));
    let choice = or_any(object(vec![
        ("delta", delta),
        ("index", scalar().boxed()),
        ("finish_reason", texts(&["stop", "error", "", "length"])),
        ("text", scalar().boxed()),
        ("logprobs", anything()),
        ("usage", usage.clone()),
    ]));
    let groq = or_any(object(vec![("id", anything()), ("usage", usage.clone())]));
    let choices = or_any(vec(choice, 0..4).prop_map(Json::Array).boxed());
    let details = or_any(object(vec![("reason", texts(&["max_output_tokens"]))]));
    let response = or_any(object(vec![
        ("usage", usage.clone()),
        ("incomplete_details", details),
        ("error", anything()),
        ("status", scalar().boxed()),
    ]));
    let error = prop_oneof![3 => Just(Json::Scalar("null".into())), 1 => anything()].boxed();
    let kind = texts(&[
        "response.output_text.delta",
        "response.reasoning_text.delta",
        "response.created",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
        "response.output_item.done",
        "message_start",
        "message_delta",
        "message_stop",
        "ping",
        "content_block_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "error",
        "keepalive",
    ]);
    let of_chat = object(vec![
        ("choices", choices.clone()),
        ("choices", choices.clone()),
        ("usage", usage.clone()),
        ("x_groq", groq),
        ("object", texts(&["chat.completion.chunk"])),
        ("id", anything()),
    ]);
    let of_types = object(vec![
        ("type", kind.clone()),
        ("type", kind.clone()),
        ("sequence_number", scalar().boxed()),
        ("response", response.clone()),
        ("content_block", block.clone()),
        ("content_block", block.clone()),
        ("message", block.clone()),
        ("delta", anthropic_delta.clone()),
        ("delta", scalar().boxed()),
        ("usage", usage.clone()),
    ]);
    let mixed = object(vec![
        ("choices", choices),
        ("type", kind),
        ("error", error),
        ("delta", anthropic_delta),
        ("message", block),
        ("usage", usage),
        ("response", response),
        ("other", anything()),
    ]);
    prop_oneof![3 => of_chat, 4 => of_types, 3 => mixed, 1 => anything()].boxed()
}

fn scanned(dialect: Dialect, name: &str, data: &[u8]) -> Outcome {
    let mut stream = StreamState::default();
    let grammar = dialect.grammar().expect("a known dialect");
    let verdict = grammar.judge(&Event::new(name.as_bytes(), data), &mut stream);
    Outcome {
        kind: Some(verdict.kind),
        reasoning: verdict.reasoning,
        tokens: stream
            .usage()
            .map(|usage| (usage.input_tokens, usage.output_tokens)),
        stop: stream.stop_reason().map(str::to_owned),
        next_sequence: stream.next_sequence(),
        all_finished: dialect == Dialect::OpenAiChat
            && Dialect::OpenAiChat
                .grammar()
                .map(|chat| chat.finish(&stream))
                == Some(Finish::Finished),
    }
}

/// Stop reasons are cut, so only their beginnings compare.
fn cut(mut outcome: Outcome) -> Outcome {
    if let Some(stop) = &mut outcome.stop {
        *stop = stop.chars().take(200).collect();
    }
    outcome
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn it_agrees_with_serde_json(
        json in event(),
        style in vec(any::<u8>(), 1..40),
        name in select(&["", "", "message_stop", "response.completed", "content_block_start"][..]),
    ) {
        let data = Writer::write(&style, &json);
        for dialect in DIALECTS {
            prop_assert_eq!(
                cut(scanned(dialect, name, data.as_bytes())),
                cut(reference::judge(dialect, name, &data)),
                "{:?} {}", dialect, data
            );
        }
    }

    #[test]
    fn a_document_that_was_cut_is_malformed(json in event(), style in vec(any::<u8>(), 1..40), at: prop::sample::Index) {
        let data = Writer::write(&style, &json);
        let data = data.trim_ascii();
        let cut = &data.as_bytes()[..at.index(data.len())];
        if data.starts_with('{') && !cut.trim_ascii().is_empty() {
            for dialect in DIALECTS {
                prop_assert_eq!(scanned(dialect, "", cut).kind, Some(EventKind::Progress));
            }
        }
    }

    #[test]
    fn no_bytes_panic(data in vec(prop_oneof![
        any::<u8>(),
        select(&b"{}[]\",:\\ \n\r0e-ntfu"[..]),
    ], 0..200)) {
        for dialect in DIALECTS {
            let _ = scanned(dialect, "", &data);
        }
        let mut judge = StreamReader::new(Dialect::Any);
        judge.push(&data);
        let mut splitter = Splitter::new();
        splitter.push(&data, |_| {});
    }

    #[test]
    fn no_damage_panics(json in event(), style in vec(any::<u8>(), 1..9), at: prop::sample::Index, byte: u8) {
        let mut data = Writer::write(&style, &json).into_bytes();
        if !data.is_empty() {
            let at = at.index(data.len());
            data[at] = byte;
        }
        for dialect in DIALECTS {
            let _ = scanned(dialect, "", &data);
        }
    }
}

#[test]
fn what_is_skipped_may_be_nested_to_any_depth() {
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        for depth in [1, 100, 126, 127, 128, 129, 5000] {
            let skipped = |open: &str, close: &str| {
                let inner = open.repeat(depth - 1) + "1" + &close.repeat(depth - 1);
                format!(r#"{{"x":{inner},"choices":[]}}"#)
            };
            let data = skipped(open, close);
            let is = |data: &str| kind(Dialect::OpenAiChat, "", data);
            assert_eq!(is(&data), EventKind::Prelude, "{depth}");
            if depth > 1 {
                // At any depth the kind of the outermost bracket counts, and each bracket
                // must be closed.
                let wrong = if close == "}" { "]" } else { "}" };
                let crossed = data.replacen(
                    &format!("{close},\"choices"),
                    &format!("{wrong},\"choices"),
                    1,
                );
                assert_eq!(is(&crossed), EventKind::Progress, "{depth}");
                let unclosed = data.replacen(&format!("{close},\"choices"), ",\"choices", 1);
                assert_eq!(is(&unclosed), EventKind::Progress, "{depth}");
            }
        }
    }
}

#[test]
fn long_strings_and_escapes_at_every_offset() {
    for len in 0..70 {
        for end in [r"", r"\\", r#"\""#, r"\u0041"] {
            let text = "x".repeat(len) + end;
            let data =
                format!(r#"{{"{text}":"{text}","choices":[{{"delta":{{"content":"{text}"}}}}]}}"#);
            let expected = if text.is_empty() {
                EventKind::Prelude
            } else {
                EventKind::Content
            };
            assert_eq!(kind(Dialect::OpenAiChat, "", &data), expected, "{data}");
        }
    }
}

#[test]
fn bytes_that_are_not_utf8_are_text() {
    let data = b"{\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}";
    assert_eq!(
        scanned(Dialect::OpenAiChat, "", data).kind,
        Some(EventKind::Content)
    );
}

#[test]
fn mismatched_brackets_are_malformed() {
    for data in [
        r#"{"x":[},"choices":[]}"#,
        r#"{"x":{"y":[1}]},"choices":[]}"#,
        r#"{"choices":[]]"#,
        r#"{"choices":[]}}"#,
        r#"{"choices":[],}"#,
        r#"{"choices":[] "x":1}"#,
        r#"{"choices"[]}"#,
        r#"{"choices":[],"x":nul}"#,
        r#"{"choices":[],"x":}"#,
        r#"{"choices":[],"x":"\"#,
    ] {
        assert_eq!(
            kind(Dialect::OpenAiChat, "", data),
            EventKind::Progress,
            "{data}"
        );
    }
}

#[test]
fn the_largest_event_is_read() {
    let text = "x".repeat(MAX_EVENT - 100);
    let data = format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#);
    let mut judge = StreamReader::new(Dialect::OpenAiChat);
    assert!(judge.push(format!("data: {data}\n\n").as_bytes()).content);
}
