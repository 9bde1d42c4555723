//! Lines and events.

use tower_agent_llm::{
    dialect::{Dialect, Finish},
    sse::{MAX_EVENT, Splitter},
    stream::StreamReader,
};

use super::{Story, behind, data, events, read, unnamed};

/// rexxars/eventsource-parser#17, Effect-TS/effect#6954: a CRLF over two chunks became two line ends, and
/// one event two. Expected: one event of three lines, with a lone CR in the place of the CRLF too.
#[test]
fn a_crlf_in_two_chunks_is_one_line_end() {
    assert_eq!(data("data: A\r\ndata: B\r\ndata: C\r\n\r\n"), ["A\nB\nC"]);
    assert_eq!(data("data: A\r\ndata: B\rdata: C\r\n\n"), ["A\nB\nC"]);
}

/// openai/openai-node#2309: blank lines of two kinds of line ends were no ends of events, and those of a
/// CR waited for another byte. Expected: each pair ends the event, at its last byte, and only once.
#[test]
fn any_two_line_ends_end_an_event_at_once() {
    let ends = ["\n", "\r", "\r\n"];
    let pairs = ends.map(|first| ends.map(|second| (first, second)));
    // A CR and an LF are one line end.
    let pairs = pairs.iter().flatten().filter(|pair| **pair != ("\r", "\n"));
    for (line, blank) in pairs {
        let first = format!("data: first{line}{blank}");
        let both = format!("{first}data: second{line}{blank}");
        assert_eq!(data(&both), ["first", "second"], "{both:?}");

        let mut splitter = Splitter::new();
        let mut count = 0;
        for byte in first.as_bytes().chunks(1) {
            splitter.push(byte, |_| count += 1);
        }
        assert_eq!(count, 1, "{first:?}");
        assert_eq!(splitter.boundary(), first.len() as u64, "{first:?}");
    }
}

/// universal-tool-calling-protocol/python-utcp#104: an event whose blank line is a lone CR was lost at the
/// end of the stream. Expected: it is whole without a further byte.
#[test]
fn a_blank_line_of_a_lone_cr_is_whole_at_the_end() {
    for stream in ["data: x\n\r", "data: x\r\r", "data: x\r\n\r"] {
        assert_eq!(data(stream), ["x"], "{stream:?}");
    }
    let done = format!("{}data: [DONE]\r\r", unnamed([CONTENT]));
    let mut reader = StreamReader::new(Dialect::OpenAiChat);
    assert!(reader.push(done.as_bytes()).ended);
    assert_eq!(reader.finish(), Finish::Complete);
}

const CONTENT: &str = r#"{"choices":[{"index":0,"delta":{"content":"x"}}]}"#;

/// openai/openai-python#1230, Soju06/codex-lb#1010, modelscope/evalscope#1642: what other standards call a
/// line end cut the data. Expected: only CR and LF do, and an event with the others in its text is read.
#[test]
fn separators_of_unicode_are_no_line_ends() {
    let all = "a\u{85}b\u{2028}c\u{2029}d\u{b}e\u{c}f\u{1c}g\u{1d}h\u{1e}i";
    assert_eq!(data(format!("data: {all}\n\n")), [all]);

    let text = "a\u{85}b\u{2028}c\u{2029}d";
    let chat = r#"{"choices":[{"index":0,"delta":{"content":"TEXT"},"finish_reason":"stop"}]}"#;
    let chat = read(
        Dialect::OpenAiChat,
        unnamed([&*chat.replace("TEXT", text), "[DONE]"]),
    );
    assert_eq!(chat.finish, Finish::Complete);
    assert_eq!(chat.stop.as_deref(), Some("stop"));

    let completed = r#"{"type":"response.completed","response":{"output":[{"content":[{"text":"TEXT"}]}],"usage":{"input_tokens":3,"output_tokens":4}}}"#;
    let responses = read(
        Dialect::OpenAiResponses,
        unnamed([&*completed.replace("TEXT", text)]),
    );
    assert_eq!(responses.finish, Finish::Complete);
    assert_eq!(responses.usage.unwrap().output_tokens, 4);
}

/// mpetazzoni/sse.js#48: white space at the end of data was trimmed, and a `data` line without a colon was
/// ignored. Expected: white space is data, but for one space behind the colon, and such a line is empty.
#[test]
fn white_space_is_data_and_a_line_without_a_colon_is_a_field() {
    assert_eq!(data("data: a \t \n\n"), ["a \t "]);
    assert_eq!(data("data:   a\n\n"), ["  a"]);
    assert_eq!(data("data\n\n"), [""]);
    assert_eq!(data("data: a\ndata\ndata: b\n\n"), ["a\n\nb"]);
    assert_eq!(data("data:\ndata:\n\n"), ["\n"]);
}

/// musistudio/claude-code-router#1672, praxis-proxy/praxis#739, graniet/llm#90: a chunk that ended within a
/// character turned it into U+FFFD. Expected: data and offsets are the same at each cut, in each dialect.
#[test]
fn a_character_in_two_chunks_stays_whole() {
    let text = "北京 \u{201c}día\u{201d} 🦀";
    for (dialect, shape) in [
        (
            Dialect::OpenAiChat,
            r#"{"choices":[{"index":0,"delta":{"content":"TEXT"}}]}"#,
        ),
        (
            Dialect::OpenAiResponses,
            r#"{"type":"response.output_text.delta","delta":"TEXT"}"#,
        ),
        (
            Dialect::Anthropic,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"TEXT"}}"#,
        ),
    ] {
        let event = shape.replace("TEXT", text);
        let stream = format!("event: é\ndata:{event}\r\n\r\n");
        assert_eq!(events(&stream), [("é".to_owned(), event)]);
        for asked in [dialect, Dialect::Any] {
            let story = read(asked, &stream);
            assert_eq!(story.dialect, dialect);
            assert_eq!(story.commit, Some(stream.len() as u64 - 1));
        }
    }
}

/// rexxars/eventsource-parser#19 and #28, openai/openai-node#2324: an image of some MB in one event took
/// minutes, because each chunk copied or searched all that had come. Expected: 3 MiB byte by byte are read,
/// the event's end, usage and stop reason are known, and the events behind it are whole.
#[test]
fn an_image_in_one_event_is_read_in_chunks_of_any_size() {
    let image = "QUJD".repeat(3 * MAX_EVENT / 4);
    let event = format!(
        r#"{{"choices":[{{"index":0,"delta":{{"images":[{{"image_url":{{"url":"data:image/png;base64,{image}"}}}}]}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":7,"completion_tokens":1290}}}}"#
    );
    let stream = unnamed([&*event, CONTENT, "[DONE]"]);
    let whole = Story::of(Dialect::OpenAiChat, &[stream.as_bytes()]);
    for size in [1, 1000, 65536] {
        let chunks: Vec<_> = stream.as_bytes().chunks(size).collect();
        assert_eq!(Story::of(Dialect::OpenAiChat, &chunks), whole, "{size}");
    }
    assert_eq!(whole.events, 3);
    assert_eq!(whole.stop.as_deref(), Some("stop"));
    assert_eq!(whole.usage.unwrap().output_tokens, 1290);
    assert_eq!(whole.finish, Finish::Complete);
}

/// Lambdua/openai4j#90, openai/openai-go#227: a comment before the first chunk, with a blank line of its own,
/// was an invalid event. Expected: no event and no progress, but a sign of life behind which a cut is safe.
#[test]
fn a_comment_with_a_blank_line_is_a_sign_of_life() {
    let comment = ": OPENROUTER PROCESSING\n\n";
    let stream = format!("{comment}{comment}{}", unnamed([CONTENT, "[DONE]"]));
    assert_eq!(data(&stream), [CONTENT, "[DONE]"]);
    for dialect in [Dialect::OpenAiChat, Dialect::Any] {
        let story = read(dialect, &stream);
        assert_eq!((story.heartbeats, story.events), (2, 2));
        assert_eq!(story.commit, behind(&stream, CONTENT));
        assert_eq!(story.finish, Finish::Complete);

        let mut reader = StreamReader::new(dialect);
        let seen = reader.push(comment.as_bytes());
        assert!(!seen.progress && !seen.content && !seen.ended);
        assert_eq!(reader.boundary(), comment.len() as u64);
    }
}

/// rexxars/eventsource-parser#18, a2aproject/a2a-python#1213: an event without its blank line was lost at the
/// end. Expected: a splitter follows the standard; `StreamReader::end` reads a whole object or `[DONE]`, and
/// neither half an object nor `123`, which may be the beginning of another number.
#[test]
fn the_end_of_a_stream_completes_what_is_whole() {
    let start = unnamed([CONTENT]);
    for (last, is_read) in [
        (CONTENT, true),
        ("[DONE]", true),
        ("123", false),
        (&CONTENT[..CONTENT.len() - 1], false),
        ("[DON", false),
    ] {
        for ending in ["", "\n", "\r\n"] {
            let stream = format!("{start}event: done\ndata: {last}{ending}");
            assert_eq!(data(&stream), [CONTENT], "{stream:?}");
            let story = read(Dialect::OpenAiChat, &stream);
            assert_eq!(story.events, 1 + u64::from(is_read), "{stream:?}");
            let end = if is_read { stream.len() } else { start.len() };
            assert_eq!(story.boundary, end as u64, "{stream:?}");
        }
    }
}

/// vm0-ai/vm0#24687, agentic-os-org/ANOLISA#2209: behind a byte order mark, the first event without a name
/// was lost, and the usage in it. Expected: the mark changes the offsets alone, also in parts.
#[test]
fn a_byte_order_mark_hides_no_usage() {
    for (dialect, events) in [
        (
            Dialect::OpenAiResponses,
            [
                r#"{"type":"response.completed","response":{"usage":{"input_tokens":9,"output_tokens":4}}}"#,
                r#"{"type":"later"}"#,
            ],
        ),
        (
            Dialect::Anthropic,
            [
                r#"{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}"#,
                r#"{"type":"message_delta","delta":{},"usage":{"output_tokens":4}}"#,
            ],
        ),
    ] {
        let stream = unnamed(events);
        let plain = read(dialect, &stream);
        let marked = read(dialect, format!("\u{feff}{stream}"));
        assert_eq!(plain.usage.unwrap().input_tokens, 9);
        assert_eq!(marked.usage, plain.usage);
        assert_eq!(marked.events, plain.events);
        assert_eq!(marked.boundary, plain.boundary + 3);
        assert_eq!(marked.terminator, plain.terminator.map(|at| at + 3));
    }
}

/// launchdarkly/rust-eventsource-client#84: a stream of JSON lines, as Ollama's own API sends them, was read as
/// events, and nothing came. Expected: they are no events and no answer, so that the stream never counts as
/// whole; a line that is an error is one.
#[test]
fn json_lines_are_no_answer() {
    let line = |content: &str, done: bool| {
        format!(
            r#"{{"model":"m","message":{{"role":"assistant","content":"{content}"}},"done":{done}}}"#
        )
    };
    let lines = format!("{}\n{}\n", line("Hi", false), line("", true));
    let story = read(Dialect::OpenAiChat, &lines);
    assert_eq!((story.events, story.commit), (0, None));
    assert_eq!(story.finish, Finish::Truncated);

    let failed = format!("{}\n{}\n", line("Hi", false), r#"{"error":"an error"}"#);
    let story = read(Dialect::OpenAiChat, failed);
    assert_eq!(story.finish, Finish::Failed);
    assert_eq!(story.failure.unwrap().message, "an error");
}
