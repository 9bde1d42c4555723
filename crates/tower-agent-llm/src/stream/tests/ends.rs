//! Tests of how streams end, and of errors in forms that SDKs ignore.

use super::{super::reader::StreamReader, judged};
use crate::{
    dialect::{Dialect, Finish},
    sse::{Event, MAX_EVENT},
};

/// A reader of a whole stream, after the clean end of its transport.
fn ended(dialect: Dialect, stream: &str) -> StreamReader {
    let mut reader = StreamReader::new(dialect);
    reader.push(stream.as_bytes());
    reader.end();
    reader
}

fn chat(stream: &str) -> StreamReader {
    ended(Dialect::OpenAiChat, stream)
}

const STOP: &str = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

#[test]
fn a_last_event_counts_without_its_blank_line_if_its_data_is_whole() {
    for (end, finish) in [
        ("", Finish::Finished),
        ("\n", Finish::Finished),
        ("\r", Finish::Finished),
        ("\ndata:", Finish::Finished),
        ("\nid: 1", Finish::Truncated),
        ("\nid: 1\n", Finish::Finished),
        ("\nda", Finish::Truncated),
        ("\ndata: 1", Finish::Truncated),
    ] {
        let stream = format!("{STOP}{end}");
        let reader = chat(&stream);
        assert_eq!(reader.finish(), finish, "{end:?}");
        let is_whole = finish == Finish::Finished;
        let boundary = if is_whole { stream.len() as u64 } else { 0 };
        assert_eq!(reader.boundary(), boundary, "{end:?}");
        assert_eq!(reader.events(), u64::from(is_whole), "{end:?}");
    }
    for len in 1..STOP.len() {
        assert_eq!(chat(&STOP[..len]).finish(), Finish::Truncated, "{len}");
    }
}

#[test]
fn a_last_done_counts_without_its_blank_line() {
    for data in [
        "data: [DONE]",
        "data: [DONE] ",
        "data:[DONE]\n",
        "data: [DONE]\r\n",
    ] {
        assert_eq!(chat(data).finish(), Finish::Complete, "{data:?}");
        assert_eq!(chat(data).terminator(), Some(data.len() as u64));
    }
    for data in [
        "data: [DONE",
        "data: DONE",
        "event: [DONE]",
        "data: \"a\"",
        ": {}",
    ] {
        assert_eq!(chat(data).finish(), Finish::Truncated, "{data:?}");
        assert_eq!(chat(data).events(), 0, "{data:?}");
    }
}

#[test]
fn a_long_last_event_counts_if_it_is_whole() {
    let text = "x".repeat(MAX_EVENT);
    let event =
        format!(r#"data: {{"x":"{text}","choices":[{{"index":0,"finish_reason":"stop"}}]}}"#);
    assert_eq!(chat(&event).finish(), Finish::Finished);
    assert_eq!(chat(&event[..event.len() - 1]).finish(), Finish::Truncated);
}

#[test]
fn an_end_behind_a_whole_event_changes_nothing() {
    let stream = format!("{STOP}\n\n");
    let mut reader = chat(&stream);
    assert_eq!(
        (reader.events(), reader.boundary()),
        (1, stream.len() as u64)
    );
    reader.end();
    assert_eq!(reader.events(), 1);
}

#[test]
fn bare_json_at_the_end_is_an_error_or_nothing() {
    let error = r#"{"error":{"message":"m","code":"c"}}"#;
    let reader = chat(error);
    assert_eq!(reader.finish(), Finish::Failed);
    assert_eq!(reader.failure().unwrap().code, "c");
    assert!(!Dialect::OpenAiChat.raises(reader.failure().unwrap()));
    assert_eq!(chat(&error[..error.len() - 1]).finish(), Finish::Truncated);
    let answer = r#"{"choices":[{"message":{"content":"x"}}]}"#;
    assert_eq!(chat(answer).finish(), Finish::Truncated);
    assert!(chat(answer).says_nothing());
    assert_eq!(ended(Dialect::Any, answer).finish(), Finish::Unknown);
    assert_eq!(
        chat(&format!("{STOP}\n\n{answer}\n")).finish(),
        Finish::Finished
    );
}

#[test]
fn nothing_behind_an_error_before_the_content_counts() {
    let content = r#"data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    let error = r#"data: {"error":{"message":"m"}}"#;
    let reader = chat(&format!("{error}\n\n{content}\n\n"));
    assert_eq!((reader.commit(), reader.usage()), (None, None));
    assert_eq!(reader.stop_reason(), None);
    // Behind content it is the caller's last event, in any form.
    let start = content.replace(r#","finish_reason":"stop""#, "");
    for error in [error, r#"error: {"message":"m"}"#] {
        let reader = chat(&format!("{start}\n\n: c\n{error}\n\n{content}\n\n"));
        assert_eq!(reader.stop_reason(), None);
        assert!(reader.commit() < reader.error());
    }
}

#[test]
fn a_response_done_ends_the_answer_in_place_of_its_last_event() {
    let response =
        r#"{"id":"resp_1","status":"completed","usage":{"input_tokens":3,"output_tokens":4}}"#;
    let done = format!(r#"{{"type":"response.done","sequence_number":5,"response":{response}}}"#);
    let completed =
        format!(r#"{{"type":"response.completed","sequence_number":6,"response":{response}}}"#);
    let responses = |events: &[&str]| judged(Dialect::OpenAiResponses, events);

    let reader = responses(&[&done]);
    assert_eq!(reader.finish(), Finish::Complete);
    assert_eq!(reader.usage().map(|it| it.output_tokens), Some(4));
    let added = std::str::from_utf8(reader.done().unwrap()).unwrap();
    let expected = format!(
        "event: response.completed\ndata: {{\"type\":\"response.completed\",\
         \"sequence_number\":6,\"response\":{response}}}\n\n"
    );
    assert_eq!(added, expected);
    // Its own reader takes it for what it is.
    assert_eq!(
        ended(Dialect::OpenAiResponses, added).finish(),
        Finish::Complete
    );

    for events in [[&*done, &*completed], [&*completed, &*done]] {
        let reader = responses(&events);
        assert_eq!(reader.finish(), Finish::Complete, "{events:?}");
        assert!(reader.done().is_none(), "{events:?}");
    }

    let incomplete = done.replace(r#""status":"completed""#, r#""status":"incomplete""#);
    let reader = responses(&[&incomplete]);
    assert!(
        reader
            .done()
            .unwrap()
            .starts_with(b"event: response.incomplete\n")
    );
    for status in ["failed", "cancelled"] {
        let failed = done.replace(
            r#""status":"completed""#,
            &format!(r#""status":"{status}""#),
        );
        let reader = responses(&[&failed]);
        assert_eq!(reader.finish(), Finish::Failed, "{status}");
        assert!(reader.done().is_none(), "{status}");
        assert!(
            !Dialect::OpenAiResponses.raises(reader.failure().unwrap()),
            "{status}"
        );
    }
}

#[test]
fn a_response_done_without_a_whole_response_keeps_its_id_and_usage() {
    let created = r#"{"type":"response.created","response":{"id":"resp_1"}}"#;
    let usage = r#"{"input_tokens":3,"output_tokens":4}"#;
    let text = "x".repeat(MAX_EVENT);
    let long = format!(
        r#"{{"type":"response.done","response":{{"id":"resp_1","status":"completed","output":[{{"text":"{text}"}}],"usage":{usage}}}}}"#
    );
    for (done, usage) in [
        (r#"{"type":"response.done"}"#, None),
        (r#"{"type":"response.done","response":null}"#, None),
        (&*long, Some(usage)),
    ] {
        let reader = judged(Dialect::OpenAiResponses, &[created, done]);
        assert_eq!(reader.finish(), Finish::Complete);
        let added = std::str::from_utf8(reader.done().unwrap()).unwrap();
        let data = added.split_once("data: ").unwrap().1;
        let event: serde_json::Value = serde_json::from_str(data).unwrap();
        let mut response = serde_json::json!({
            "object": "response", "status": "completed", "output": [], "id": "resp_1",
        });
        if let Some(usage) = usage {
            response["usage"] = serde_json::from_str(usage).unwrap();
        }
        assert_eq!(event["response"], response, "{done:.60}");
    }
}

#[test]
fn a_last_error_field_counts_without_its_blank_line() {
    for (stream, message) in [
        ("error: out of memory", "out of memory"),
        ("error: out of memory\n", "out of memory"),
        ("error: {\"message\":\"m\"}", "m"),
        ("error: {\"mess", "{\"mess"),
    ] {
        let reader = chat(stream);
        assert_eq!(reader.finish(), Finish::Failed, "{stream:?}");
        assert_eq!(reader.failure().unwrap().message, message, "{stream:?}");
    }
    for stream in ["error:", "error: null", "error: \n", "error"] {
        assert_eq!(chat(stream).finish(), Finish::Truncated, "{stream:?}");
    }
}

#[test]
fn bare_json_is_an_error_by_what_it_says() {
    for (json, first, later) in [
        (r#"{"error":{"message":"m"}}"#, true, true),
        (r#"{"error":"m"}"#, true, true),
        (r#"[{"error":{"code":429}}]"#, true, true),
        (r#"{"type":"error","x":1}"#, true, true),
        (r#"{"internalServerException":{"message":"m"}}"#, true, true),
        (r#"{"choices":[{"error":{"message":"m"}}]}"#, true, true),
        (
            r#"{"output":[1],"status":"failed","error":{"code":"c"}}"#,
            true,
            true,
        ),
        (r#"{"message":"no route"}"#, true, false),
        (r#"{"code":500,"msg":"no"}"#, true, false),
        (r#"{"code":"InvalidParameter","message":"no"}"#, true, false),
        (r#"{"detail":"Not Found","status":"404"}"#, true, false),
        (r#"{"message":"ok","code":0}"#, false, false),
        (r#"{"message":"ok","code":200}"#, false, false),
        (r#"{"message":"hi","role":"assistant"}"#, false, false),
        (
            r#"{"error":{"message":"m"},"choices":[{"delta":{"content":"x"}}]}"#,
            false,
            false,
        ),
        (r#"{"error":null,"message":null}"#, false, false),
        (r#"{"error":{}}"#, true, true),
        (r#"{"a":1}"#, false, false),
        ("[]", false, false),
    ] {
        let is_error = |stream: String| chat(&stream).finish() == Finish::Failed;
        assert_eq!(is_error(json.to_owned()), first, "{json}");
        assert_eq!(is_error(format!("{STOP}\n\n{json}\n")), later, "{json}");
    }
}

#[test]
fn bare_json_of_the_shape_of_content_is_no_content() {
    let content = r#"{"choices":[{"index":0,"delta":{"content":"x"}}]}"#;
    let framed = format!("data: {content}\n\n").repeat(2);
    for bare in ["", &format!("{content}\n\n")] {
        let reader = chat(&format!("{framed}{bare}"));
        assert_eq!(reader.shape_hits(), 1, "{bare:?}");
        assert_eq!(reader.progressed(), framed.len() as u64, "{bare:?}");
    }
}

#[test]
fn a_text_that_begins_like_an_error_is_one() {
    let is_error = |data: &str| Event::new(b"", data.as_bytes()).is_error_text();
    for data in [
        "error: out of memory",
        "Error: no",
        "  ERROR:",
        "[ERROR] no",
        "[error",
    ] {
        assert!(is_error(data), "{data}");
        for dialect in [
            Dialect::OpenAiChat,
            Dialect::Anthropic,
            Dialect::OpenAiResponses,
        ] {
            let reader = judged(dialect, &[data]);
            assert_eq!(reader.finish(), Finish::Failed, "{dialect:?}: {data}");
            assert!(
                !dialect.raises(reader.failure().unwrap()),
                "{dialect:?}: {data}"
            );
        }
    }
    for data in [
        "",
        "error",
        "errors: 7",
        "an error: no",
        "[err",
        "{\"error\":1}",
    ] {
        assert!(!is_error(data), "{data}");
    }
}
