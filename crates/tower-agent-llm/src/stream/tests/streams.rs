//! Tests that the cut of a stream into chunks changes no result.

use crate::dialect::Finish;
use proptest::{collection::vec, prelude::*, sample::select};

use super::{super::reader::StreamReader, Owned, split};
use crate::{
    dialect::{Dialect, Usage},
    sse::Splitter,
};

/// All results that a stream reader returns.
#[derive(Debug, PartialEq)]
pub(super) struct StreamMarks {
    offsets: [Option<u64>; 5],
    counts: [u64; 7],
    dialect: Dialect,
    failure: Option<(String, String, String)>,
    usage: Option<Usage>,
    stop: Option<String>,
    response_id: Option<String>,
    finish: Finish,
}

/// A reader that counts what the model generates, too.
pub(super) fn counting(dialect: Dialect) -> StreamReader {
    let mut reader = StreamReader::new(dialect);
    reader.count_generated();
    reader
}

pub(super) fn marks(judge: &StreamReader) -> StreamMarks {
    StreamMarks {
        offsets: [
            judge.commit(),
            judge.text(),
            judge.terminator(),
            judge.error(),
            judge.response_id_end().map(|(_, end)| end),
        ],
        counts: [
            judge.position(),
            judge.boundary(),
            judge.progressed(),
            judge.next_sequence(),
            judge.heartbeats(),
            judge.events(),
            judge.unstated_bytes(),
        ],
        dialect: judge.dialect(),
        failure: judge
            .failure()
            .map(|it| (it.kind.clone(), it.code.clone(), it.message.clone())),
        usage: judge.usage(),
        stop: judge.stop_reason().map(str::to_owned),
        response_id: judge.response_id().map(str::to_owned),
        finish: judge.finish(),
    }
}

fn chunks<'a>(mut stream: &'a [u8], sizes: &[usize]) -> Vec<&'a [u8]> {
    let mut chunks = Vec::new();
    let mut sizes = sizes.iter().cycle();
    while !stream.is_empty() {
        let size = sizes.next().copied().unwrap_or(1).min(stream.len());
        let (chunk, rest) = stream.split_at(size);
        chunks.push(chunk);
        stream = rest;
    }
    chunks
}

fn sizes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![Just(vec![1]), vec(1_usize..4, 1..9), vec(0_usize..60, 1..9)]
        .prop_filter("or it never ends", |sizes| {
            sizes.iter().any(|size| *size > 0)
        })
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let line = select(
        &[
            "\u{feff}",
            "",
            "",
            "",
            ": comment",
            ":",
            "data",
            "data:",
            "data: [DONE]",
            "data: é",
            "dat",
            "datum: 1",
            "event: error",
            "event: ping",
            "event:message_stop",
            "eventual: 1",
            "id: 1",
            r#"data: {"choices":[{"index":0,"delta":{"content":"x"}}]}"#,
            r#"data: {"choices":[{"index":0,"delta":{"reasoning":"x"}}]}"#,
            r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
            r#"data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
            r#"data: {"error":{"message":"m","code":"c"}}"#,
            r#"data: {"type":"response.output_text.delta","sequence_number":3}"#,
            r#"data: {"type":"response.output_text.delta","delta":""}"#,
            r#"data: {"type":"response.completed","sequence_number":4,"response":{}}"#,
            r#"data: {"type":"message_start","message":{"usage":{"input_tokens":1}}}"#,
            r#"data: {"type":"content_block_delta","delta":{"type":"text_delta"}}"#,
            r#"data: {"type":"content_block_delta","delta":{"type":"text_delta","text":"x"}}"#,
            r#"data: {"type":"message_stop"}"#,
        ][..],
    );
    let end = select(
        &[
            "\n", "\n", "\n\n", "\n\n", "\r", "\r\n", "\r\n\r\n", "\r\r", "",
        ][..],
    );
    let line = (line, end).prop_map(|(line, end)| [line, end].concat().into_bytes());
    prop_oneof![
        9 => vec(line, 0..30).prop_map(|lines| lines.concat()),
        1 => vec(select(&b"\xEF\xBB\xBFdatevn: \r\n"[..]), 0..60),
    ]
}

/// A stream with the forms of errors that the standard does not know.
fn stream_with_errors() -> impl Strategy<Value = Vec<u8>> {
    let line = select(
        &[
            "error:",
            "error: null",
            r#"error: {"message":"m"}"#,
            "error",
            "{",
            "[",
            "}",
            "]",
            "",
            r#"{"error":{"message":"m"}}"#,
            r#"  "a": "}","#,
            "data",
            "data: {}",
            ": c",
            "event: x",
            "id: 1",
            "err",
        ][..],
    );
    let end = select(&["\n", "\n", "\n\n", "\r\n", "\r", ""][..]);
    let line = (line, end).prop_map(|(line, end)| [line, end].concat().into_bytes());
    let lines = vec(line, 0..20).prop_map(|lines| lines.concat());
    prop_oneof![lines, vec(select(&b"er:or{}[]\"d\\ata \r\n"[..]), 0..40)]
}

/// Splits the whole stream at once into events, by the letter of the standard.
fn reference(stream: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let stream = stream.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(stream);
    let mut lines = Vec::new();
    let mut line = Vec::new();
    let mut bytes = stream.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte == b'\r' || byte == b'\n' {
            if byte == b'\r' {
                bytes.next_if_eq(&b'\n');
            }
            lines.push(std::mem::take(&mut line));
        } else {
            line.push(byte);
        }
    }
    let mut events = Vec::new();
    let (mut name, mut data) = (Vec::new(), Vec::new());
    for line in lines {
        if line.is_empty() {
            if data.pop().is_some() {
                events.push((std::mem::take(&mut name), std::mem::take(&mut data)));
            }
            name.clear();
            continue;
        }
        let colon = line
            .iter()
            .position(|byte| *byte == b':')
            .unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => {
                data.extend_from_slice(value);
                data.push(b'\n');
            }
            // Generated lines without an end run together to long event names, which the
            // splitter cuts.
            b"event" => name = value[..value.len().min(256)].to_vec(),
            _ => {}
        }
    }
    events
}

#[test]
fn empty_deltas_neither_commit_nor_are_progress_at_any_chunking() {
    for (dialect, empty, filled) in [
        (
            Dialect::OpenAiChat,
            r#"{"choices":[{"index":0,"delta":{"content":""}}]}"#,
            r#"{"choices":[{"index":0,"delta":{"content":"x"}}]}"#,
        ),
        (
            Dialect::OpenAiResponses,
            r#"{"type":"response.output_text.delta","sequence_number":1,"delta":""}"#,
            r#"{"type":"response.output_text.delta","sequence_number":1,"delta":"x"}"#,
        ),
        (
            Dialect::Anthropic,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"x"}}"#,
        ),
    ] {
        let empties = format!("data: {empty}\n\n").repeat(5);
        let whole = format!("{empties}data: {filled}\n\n{empties}");
        let content = (empties.len() + format!("data: {filled}\n\n").len()) as u64;
        for size in [1, 2, 3, 7, 16, 61, 256, whole.len()] {
            let mut judge = counting(dialect);
            for chunk in chunks(empties.as_bytes(), &[size]) {
                let seen = judge.push(chunk);
                assert!(!seen.content && !seen.progress, "{empty} by {size}");
            }
            assert_eq!((judge.commit(), judge.progressed()), (None, 0));

            let mut judge = counting(dialect);
            for chunk in chunks(whole.as_bytes(), &[size]) {
                judge.push(chunk);
            }
            let marks = (judge.commit(), judge.progressed());
            assert_eq!(marks, (Some(content), content), "{empty} by {size}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn events_are_those_of_the_standard(stream in stream()) {
        let events = split(&mut Splitter::new(), [&stream[..]]);
        let events: Vec<_> = events.into_iter().map(|Owned { name, data, .. }| (name, data)).collect();
        prop_assert_eq!(events, reference(&stream));
    }

    /// covers: T71
    #[test]
    fn any_chunks_make_the_same_events(
        stream in prop_oneof![stream(), stream_with_errors()],
        sizes in sizes(),
    ) {
        let (mut whole, mut parts) = (Splitter::new(), Splitter::new());
        let mut last = [None, None];
        for ((splitter, chunks), last) in [
            (&mut parts, chunks(&stream, &sizes)),
            (&mut whole, vec![&stream[..]]),
        ]
        .into_iter()
        .zip(&mut last)
        {
            let events = split(splitter, chunks);
            let boundary = splitter.boundary();
            let mut end = None;
            splitter.finish(|_| true, |event| end = Some((event.data.to_vec(), event.end)));
            *last = Some((events, boundary, end));
        }
        prop_assert_eq!(&last[0], &last[1]);
        prop_assert_eq!(parts.boundary(), whole.boundary());
        prop_assert_eq!(parts.position(), stream.len() as u64);
    }

    #[test]
    fn any_chunks_make_the_same_marks(
        stream in prop_oneof![stream(), stream_with_errors()],
        sizes in sizes(),
        dialect in select(&[
            Dialect::Any, Dialect::OpenAiChat, Dialect::OpenAiResponses, Dialect::Anthropic,
        ][..]),
    ) {
        let (mut whole, mut parts) = (counting(dialect), counting(dialect));
        let at_once = whole.push(&stream);
        let mut seen = at_once;
        (seen.content, seen.progress, seen.ended) = (false, false, false);
        for chunk in chunks(&stream, &sizes) {
            let part = parts.push(chunk);
            seen.content |= part.content;
            seen.progress |= part.progress;
            seen.ended |= part.ended;
        }
        prop_assert_eq!(marks(&parts), marks(&whole));
        prop_assert_eq!(seen, at_once);
    }

    #[test]
    fn what_is_put_at_the_boundary_is_a_fresh_event(stream in stream()) {
        let mut splitter = Splitter::new();
        split(&mut splitter, [&stream[..]]);
        let cut = &stream[..usize::try_from(splitter.boundary()).unwrap()];
        let mut again = Splitter::new();
        let before = split(&mut again, [cut]);
        let fresh = split(&mut again, [&b"event: error\ndata: late\n\n"[..]]);
        prop_assert_eq!(before.len(), split(&mut Splitter::new(), [&stream[..]]).len());
        prop_assert_eq!((&*fresh[0].name, &*fresh[0].data, fresh.len()), (&b"error"[..], &b"late"[..], 1));
    }
}
