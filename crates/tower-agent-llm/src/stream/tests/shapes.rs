//! A stream reader that remembers shapes against one that walks over every event.
//!
//! The same streams each time. `TOWER_AGENT_SEED=<number>` draws others, and `SHAPES_CASES=<number>`
//! more or fewer; a failure prints the command that replays it.

use fastrand::Rng;

use super::{
    super::{
        partial_text::Partial,
        reader::{ChunkSummary, StreamReader},
    },
    judged,
    streams::{StreamMarks, counting, marks},
};
use crate::dialect::{Dialect, OpenAiChat};

const CASES: u64 = 3_000;

/// The events of one API: names, and data in which `$` is a text and `#` a number.
struct Api {
    dialect: Dialect,
    /// Most of the answer, in long runs of one shape.
    content: &'static [(&'static str, &'static str)],
    /// What comes in between.
    others: &'static [(&'static str, &'static str)],
}

const APIS: [Api; 3] = [
    Api {
        dialect: Dialect::OpenAiChat,
        content: &[
            (
                "",
                r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1760000000,"model":"m","service_tier":"default","system_fingerprint":"fp_1","choices":[{"index":0,"delta":{"content":"$"},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":"$"}"#,
            ),
            (
                "",
                r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"$"},"finish_reason":null}]}"#,
            ),
            (
                "",
                r#"{"choices":[{"index":1,"delta":{"content":"$"},"finish_reason":null}]}"#,
            ),
            (
                "",
                r#"{"choices":[{"index":0,"text":"$"},{"index":1,"text":"$"}],"usage":{"prompt_tokens":9,"completion_tokens":#}}"#,
            ),
            (
                "",
                r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"$"}}]}}]}"#,
            ),
            (
                "",
                r#"{"choices":[{"index":0,"delta":{"content":"","reasoning":"$","reasoning_details":[{"type":"reasoning.text","text":"$","index":0}]}}]}"#,
            ),
            (
                "",
                r#"{ "choices" : [ { "delta" : { "reasoning_content" : "$" } } ] , "sequence_number" : 3 }"#,
            ),
            (
                "message",
                r#"{"choices":[{"index":0,"delta":{"content":"$"},"finish_reason":"length"}]}"#,
            ),
            (
                "",
                r#"{"choices":[{"index":0,"delta":{"content":"$"}},{"index":0,"delta":{"content":"$"}}]}"#,
            ),
        ],
        others: &[
            (
                "",
                r#"{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}}]}"#,
            ),
            (
                "",
                r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
            ),
            (
                "",
                r#"{"choices":[],"usage":{"prompt_tokens":#,"completion_tokens":#}}"#,
            ),
            (
                "",
                r#"{"id":"gen-1","object":"chat.completion.chunk","error":{"code":502,"message":"$"},"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#,
            ),
            ("", "[DONE]"),
        ],
    },
    Api {
        dialect: Dialect::OpenAiResponses,
        content: &[
            (
                "response.output_text.delta",
                r#"{"type":"response.output_text.delta","sequence_number":#,"item_id":"msg_1","output_index":0,"content_index":0,"delta":"$","logprobs":[],"obfuscation":"$"}"#,
            ),
            (
                "response.reasoning_summary_text.delta",
                r#"{"sequence_number": # ,"delta":"$"}"#,
            ),
            (
                "response.function_call_arguments.delta",
                r#"{"type":"response.function_call_arguments.delta","delta":"$","sequence_number":#}"#,
            ),
            (
                "",
                r#"{"type":"response.output_text.delta","sequence_number":7,"delta":"$"}"#,
            ),
            (
                "",
                r#"{"type":"response.output_text.delta","sequence_number":#,"delta":"$","sequence_number":#}"#,
            ),
            (
                "",
                r#"{"type":"response.output_text.delta","sequence_number":#,"delta":"$","sequence_number":null}"#,
            ),
            (
                "",
                r#"{"type":"response.output_text.delta","sequence_number":#,"delta":"$","item":{"sequence_number":12}}"#,
            ),
            (
                "",
                r#"{"type":"response.output_text.delta","sequence_number":18446744073709551615,"delta":"$"}"#,
            ),
            ("response.refusal.delta", ""),
        ],
        others: &[
            (
                "",
                r#"{"type":"response.created","sequence_number":#,"response":{"id":"resp_1"}}"#,
            ),
            (
                "",
                r#"{"type":"response.output_item.added","sequence_number":#,"item":{"type":"message","content":[]}}"#,
            ),
            (
                "",
                r#"{"type":"response.completed","sequence_number":#,"response":{"id":"resp_1","usage":{"input_tokens":3,"output_tokens":#}}}"#,
            ),
            ("error", r#"{"type":"error","code":"c","message":"$"}"#),
        ],
    },
    Api {
        dialect: Dialect::Anthropic,
        content: &[
            (
                "content_block_delta",
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"$"}}"#,
            ),
            (
                "content_block_delta",
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"$"}}"#,
            ),
            (
                "",
                r#"{"delta":{"type":"signature_delta","signature":"$"},"type":"content_block_delta"}"#,
            ),
            (
                "content_block_delta",
                r#"{"index":1,"delta":{"type":"input_json_delta","partial_json":"$"}}"#,
            ),
            (
                "",
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"$"}}"#,
            ),
            (
                "",
                r#"{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{"text":"$"}}}"#,
            ),
            ("content_block_delta", ""),
        ],
        others: &[
            (
                "message_start",
                r#"{"type":"message_start","message":{"usage":{"input_tokens":#,"output_tokens":1}}}"#,
            ),
            (
                "message_delta",
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":#}}"#,
            ),
            ("ping", r#"{"type":"ping"}"#),
            ("message_stop", r#"{"type":"message_stop"}"#),
            (
                "error",
                r#"{"type":"error","error":{"type":"overloaded_error","message":"$"}}"#,
            ),
        ],
    },
];

/// Texts as they stand between quotes; some end the string early, or not at all.
const TEXTS: &[&[u8]] = &[
    b"",
    b"x",
    b" hello",
    b" hello",
    "d\u{e9}j\u{e0} \u{65e5}\u{672c}".as_bytes(),
    b"\\n",
    b"\\\"",
    b"\\\\",
    b"C:\\\\dir\\\\",
    b"\\\\\\\"",
    b"\\u00e9\\ud83d\\ude00",
    b"\\ud83d",
    b"\\q",
    b"\\",
    b"\"",
    b"\\\\\"",
    b"\x01\t",
    b"\xff\xc3",
    b"{\\\"error\\\":{\\\"code\\\":\\\"c\\\"}}",
    b"\",\"finish_reason\":\"stop",
    b"a text of more bytes than the scanner reads in words of eight, which are sixty-four of them",
];

const NUMBERS: &[&str] = &[
    "0",
    "007",
    "-4",
    "1.5",
    "1e3",
    "1E3",
    "2+1",
    "\"5\"",
    "null",
    "",
    "9223372036854775807",
    "18446744073709551614",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999",
];

/// Members that stand twice, or where none is expected.
const MEMBERS: &[&str] = &[
    r#""content":"","#,
    r#""content":"$","#,
    r#""text":"$","#,
    r#""delta":"","#,
    r#""delta":{"content":["$"]},"#,
    r#""con\u0074ent":"$","#,
    r#""reasoning":"$","#,
    r#""sequence_number":#,"#,
    r#""sequence_number":null,"#,
    r#""sequence_n\u0075mber":#,"#,
    r#""finish_reason":"stop","#,
    r#""finish_reason":"error","#,
    r#""stop_reason":"refusal","#,
    r#""type":"ping","#,
    r#""type":"$","#,
    r#""usage":{"output_tokens":#,"completion_tokens":#},"#,
    r#""error":{"message":"$"},"#,
    r#""error":"$","#,
    r#""x":[{"text":"$"},["arguments","$",{}],-1.5e3,true],"#,
];

/// Changes data, or the pattern of data, in one place.
fn mutate(rng: &mut Rng, data: &mut Vec<u8>) {
    let at = rng.usize(..=data.len());
    let to = (at + rng.usize(..9)).min(data.len());
    let byte = *rng.choice(br#""\{}[],: 0.eE+-a$#"#).expect("bytes");
    match rng.u8(..9) {
        0 => data.insert(at, byte),
        1 => drop(data.splice(at..to, [])),
        2 => drop(data.splice(at..at, data[at..to].to_vec())),
        3 => data.truncate(at),
        4 => data.push(byte),
        // The byte next to a quote is the first or the last one of a fixed part.
        5 | 6 => {
            let quotes = (0..data.len()).filter(|at| data[*at] == b'"');
            if let Some(quote) = rng.choice(quotes.collect::<Vec<_>>()) {
                let near = (quote + rng.usize(..3)).saturating_sub(1);
                let near = near.min(data.len() - 1);
                data[near] = byte;
            }
        }
        _ => {
            let opened = (0..data.len()).filter(|at| data[*at] == b'{');
            if let Some(opened) = rng.choice(opened.collect::<Vec<_>>()) {
                let member = rng.choice(MEMBERS).expect("members").bytes();
                drop(data.splice(opened + 1..opened + 1, member));
            }
        }
    }
}

/// Fills in the texts and numbers of a pattern.
fn fill(rng: &mut Rng, pattern: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    for byte in pattern {
        match byte {
            b'$' if rng.u8(..5) > 0 => data.extend_from_slice(b" token"),
            b'$' => data.extend_from_slice(rng.choice(TEXTS).expect("texts")),
            b'#' if rng.u8(..16) > 0 => data.extend_from_slice(rng.u16(..).to_string().as_bytes()),
            b'#' => data.extend_from_slice(rng.choice(NUMBERS).expect("numbers").as_bytes()),
            _ => data.push(*byte),
        }
    }
    data
}

fn push_event(stream: &mut Vec<u8>, name: &str, data: &[u8]) {
    if !name.is_empty() {
        stream.extend_from_slice(b"event: ");
        stream.extend_from_slice(name.as_bytes());
        stream.push(b'\n');
    }
    stream.extend_from_slice(b"data: ");
    stream.extend_from_slice(data);
    stream.extend_from_slice(b"\n\n");
}

/// A stream, mostly of events with the pattern of the event before it.
fn stream(rng: &mut Rng, api: &Api) -> Vec<u8> {
    let mut stream = Vec::new();
    let draw = |rng: &mut Rng, events: &[(&'static str, &'static str)]| {
        let (name, data) = rng.choice(events).expect("events");
        (*name, data.as_bytes().to_vec())
    };
    let (mut name, mut pattern) = draw(rng, api.content);
    for _ in 0..rng.u64(2..40) {
        match rng.u8(..48) {
            0..4 => (name, pattern) = draw(rng, api.content),
            4 | 5 => mutate(rng, &mut pattern),
            6 => name = ["", "error", "ping", "x.delta"][rng.usize(..4)],
            7 => stream.extend_from_slice(b": comment\n\n"),
            8..13 => {
                let (name, pattern) = draw(rng, api.others);
                let data = fill(rng, &pattern);
                push_event(&mut stream, name, &data);
            }
            _ => {}
        }
        let mut data = fill(rng, &pattern);
        if rng.u8(..10) == 0 {
            mutate(rng, &mut data);
        }
        push_event(&mut stream, name, &data);
    }
    stream
}

fn chunk_len(rng: &mut Rng, cut: u8) -> usize {
    match cut {
        0 => 1,
        1..8 => rng.usize(1..60),
        8..20 => rng.usize(1..600),
        _ => usize::MAX,
    }
}

/// Reads a chunk with a walk over every event: no piece of it completes more than one event.
fn walk(reader: &mut StreamReader, chunk: &[u8]) -> ChunkSummary {
    let mut seen = ChunkSummary::default();
    for piece in chunk.split_inclusive(|byte| matches!(byte, b'\r' | b'\n')) {
        reader.forget_shape();
        let part = reader.push(piece);
        seen.content |= part.content;
        seen.progress |= part.progress;
        seen.ended |= part.ended;
    }
    seen
}

/// All results of a reader, and the text that it collects.
fn results(reader: &StreamReader) -> (StreamMarks, Option<String>) {
    let text = reader.kept_text().and_then(Partial::read);
    (marks(reader), text.map(|text| text.to_string()))
}

/// The number of events that were read by the shape of the event before them.
fn hits(dialect: Dialect, events: &[&str]) -> u64 {
    judged(dialect, events).shape_hits()
}

fn chat(index: u64, text: &str) -> String {
    format!(r#"{{"choices":[{{"index":{index},"delta":{{"content":"{text}"}}}}]}}"#)
}

#[test]
fn events_that_differ_in_their_text_have_one_shape() {
    let [a, b, long] = ["a", "b", &"long ".repeat(10_000)].map(|text| chat(0, text));
    let events = [&*a, &b, &long, &a];
    assert_eq!(hits(Dialect::OpenAiChat, &events), 3);
    // The event that tells the dialect is recorded in it.
    assert_eq!(hits(Dialect::Any, &events), 3);
    // A grammar of a program may read anything.
    assert_eq!(hits(Dialect::Custom(&OpenAiChat), &events), 0);
}

#[test]
fn an_event_without_the_shape_ends_it() {
    let [a, b, empty] = ["a", "b", ""].map(|text| chat(0, text));
    assert_eq!(hits(Dialect::OpenAiChat, &[&a, &empty, &b, &a]), 1);
    assert_eq!(hits(Dialect::OpenAiChat, &[&a, "[DONE]", &b, &a]), 1);
}

#[test]
fn shapes_in_turns_are_recorded_less_and_less() {
    let [a, b] = [0, 1].map(|index| chat(index, "x"));
    let turns = [&*a, &b].repeat(50);
    assert_eq!(hits(Dialect::OpenAiChat, &turns), 0);
    // At the latest the 32nd event behind them is recorded.
    let events = [&*turns, &[&*a].repeat(32)].concat();
    assert!(hits(Dialect::OpenAiChat, &events) > 0);
}

#[test]
fn a_large_or_deep_event_has_no_shape() {
    let wide = |key: usize| format!(r#"{{"k":"{}"}}"#, "k".repeat(key));
    let deep = |depth| format!(r#"{{"k":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    let content = |event: &str| {
        let event = event.replacen('{', r#"{"choices":[{"delta":{"content":"x"}}],"#, 1);
        hits(Dialect::OpenAiChat, &[&event, &event])
    };
    assert_eq!([wide(100), wide(500)].map(|event| content(&event)), [1, 0]);
    assert_eq!([deep(100), deep(150)].map(|event| content(&event)), [1, 0]);
    let texts = |count| chat(0, "x").replace('}', &r#","text":"x"}"#.repeat(count));
    assert_eq!(
        [1, 20].map(|count| hits(Dialect::OpenAiChat, &[&*texts(count); 2])),
        [1, 0]
    );
}

#[test]
fn a_shape_changes_no_result() {
    let number = |name, default| {
        std::env::var(name).map_or(default, |text| text.parse::<u64>().expect("a number"))
    };
    let seed = number("TOWER_AGENT_SEED", 0);
    let cases = number("SHAPES_CASES", CASES);
    let (mut hits, mut events) = ([0; 4], [0; 4]);
    for seed in seed..seed + cases {
        let mut rng = Rng::with_seed(seed);
        let which = rng.usize(..3);
        let api = &APIS[which];
        let known = rng.u8(..4) > 0;
        let dialect = if known { api.dialect } else { Dialect::Any };
        let stream = stream(&mut rng, api);
        let (mut shaped, mut walked) = (counting(dialect), counting(dialect));
        let keep_text_at = rng.usize(..400);
        let cut = rng.u8(..40);
        let mut rest = &*stream;
        while !rest.is_empty() {
            if shaped.kept_text().is_none() && stream.len() - rest.len() >= keep_text_at {
                shaped.keep_text(Partial::new(200));
                walked.keep_text(Partial::new(200));
            }
            let (chunk, left) = rest.split_at(chunk_len(&mut rng, cut).min(rest.len()));
            rest = left;
            let seen = (shaped.push(chunk), walk(&mut walked, chunk));
            assert!(
                seen.0 == seen.1 && results(&shaped) == results(&walked),
                "shaped: {:?} {:#?}\nwalked: {:?} {:#?}\nof {dialect:?} behind byte {} of\n{}\n\
                 replay: TOWER_AGENT_SEED={seed} SHAPES_CASES=1 cargo test --lib a_shape_changes",
                seen.0,
                results(&shaped),
                seen.1,
                results(&walked),
                stream.len() - rest.len(),
                String::from_utf8_lossy(&stream),
            );
        }
        assert_eq!(walked.shape_hits(), 0);
        let which = if known { which } else { 3 };
        hits[which] += shaped.shape_hits();
        events[which] += shaped.events();
    }
    println!("events with the shape before them: {hits:?} of {events:?}");
    if cases >= CASES {
        let shares = hits.iter().zip(&events);
        assert!(
            shares.clone().all(|(hits, events)| hits * 8 > *events),
            "{hits:?} of {events:?}"
        );
    }
}
