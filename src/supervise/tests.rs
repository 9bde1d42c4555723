//! Tests of what the marks of a stream say of its end.

use super::stream_marks::MarkingReader;
use crate::llm::{MESSAGE_STOP, dialect::Dialect, sse::DONE};

fn ended(dialect: Dialect, events: &[&str]) -> MarkingReader {
    let mut reader = MarkingReader::new(dialect);
    for data in events {
        reader.push(format!("data: {data}\n\n").as_bytes());
    }
    reader.end();
    reader
}

#[test]
fn a_whole_answer_lacks_the_terminator_that_did_not_come() {
    let finish = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    let other = r#"{"choices":[{"index":1,"delta":{"content":"x"}}]}"#;
    let stop = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"}}"#;
    let null = r#"{"type":"message_delta","delta":{"stop_reason":null}}"#;
    let end = r#"{"type":"message_stop"}"#;
    let error = r#"{"error":{"message":"m"}}"#;
    let created = r#"{"type":"response.created","response":{"id":"resp_1"}}"#;
    let completed = r#"{"type":"response.completed","response":{}}"#;
    let (chat, messages) = (Dialect::OpenAiChat, Dialect::Anthropic);
    type Case<'a> = (Dialect, &'a [&'a str], Option<&'a [u8]>);
    let cases: [Case<'_>; 14] = [
        (chat, &[], None),
        (chat, &[finish], Some(DONE)),
        (Dialect::Any, &[finish], Some(DONE)),
        (chat, &[finish, other], None),
        (chat, &[finish, "[DONE]"], None),
        (chat, &["[DONE]"], None),
        (chat, &[finish, error], None),
        (messages, &[stop], Some(MESSAGE_STOP)),
        (Dialect::Any, &[stop], Some(MESSAGE_STOP)),
        (messages, &[null], None),
        (messages, &[stop, end], None),
        (messages, &[end], None),
        (Dialect::OpenAiResponses, &[created], None),
        (Dialect::OpenAiResponses, &[created, completed], None),
    ];
    for (dialect, events, expected) in cases {
        let missing = ended(dialect, events).marks().missing_terminator();
        assert_eq!(missing.as_deref(), expected, "{dialect:?}: {events:?}");
    }
}

#[test]
fn the_terminator_of_a_response_is_made_of_what_came_in_its_place() {
    let done = r#"{"type":"response.done","response":{"status":"completed"}}"#;
    let completed = r#"{"type":"response.completed","response":{}}"#;
    let missing = |events: &[&str]| ended(Dialect::OpenAiResponses, events).marks().done();
    let added = missing(&[done]).unwrap();
    assert!(
        added.starts_with(b"event: response.completed\n"),
        "{added:?}"
    );
    assert_eq!(missing(&[done, completed]), None);
    assert_eq!(missing(&[completed, done]), None);
}

#[test]
fn the_stop_reason_is_that_of_the_last_choice() {
    let finish = |index: u8, reason: &str| {
        format!(r#"{{"choices":[{{"index":{index},"delta":{{}},"finish_reason":"{reason}"}}]}}"#)
    };
    let (first, second) = (finish(0, "stop"), finish(1, "length"));
    let reader = ended(Dialect::OpenAiChat, &[&first, &second]);
    assert_eq!(reader.marks().stop_reason().as_deref(), Some("length"));
}
