//! covers: D7

use bytes::Bytes;

use super::super::{item::Called, response::AnswerReader};
use crate::conversation::item::{canonical as arguments, digest};

const CHAT: &str = concat!(
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"hm\"}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"read\",\"arguments\":\"\"}}]}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"pa\"}}]}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":1,\"id\":\"b\",\"function\":{\"name\":\"list\",\"arguments\":\"{}\"}},{\"index\":0,\"function\":{\"arguments\":\"th\\\":1}\"}}]}}]}\n\n",
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n",
    "data: [DONE]\n\n",
);

const RESPONSES: &str = concat!(
    "event: response.output_item.added\ndata: {\"type\":\"response.output_item.added\",\"item\":{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"read\",\"arguments\":\"\"}}\n\n",
    "event: response.output_item.done\ndata: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"read\",\"arguments\":\"{\\\"path\\\":1}\"}}\n\n",
    "event: response.output_item.done\ndata: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"function_call\",\"call_id\":\"b\",\"name\":\"list\",\"arguments\":\"{}\"}}\n\n",
    "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"read\",\"arguments\":\"{}\"}]}}\n\n",
);

const ANTHROPIC: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"read\",\"input\":{}}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"pat\"}}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"h\\\":1}\"}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":\"b\",\"name\":\"list\",\"input\":{}}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":2}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

const DOCUMENTS: [&str; 3] = [
    r#"{"choices":[{"index":0,"message":{"role":"assistant","tool_calls":[
        {"id":"a","function":{"name":"read","arguments":"{\"path\":1}"}},
        {"id":"b","function":{"name":"list","arguments":""}}]}}]}"#,
    r#"{"id":"r","output":[{"type":"message","content":[]},
        {"type":"function_call","id":"x","call_id":"a","name":"read","arguments":"{\"path\":1}"},
        {"type":"function_call","call_id":"b","name":"list","arguments":"{}"}]}"#,
    r#"{"type":"message","role":"assistant","content":[{"type":"text","text":"x"},
        {"type":"tool_use","id":"a","name":"read","input":{"path":1}},
        {"type":"tool_use","id":"b","name":"list","input":{}}]}"#,
];

fn expected() -> Vec<Called> {
    let call = |id: &str, name: &'static str, json: &str| Called {
        id: Some(digest(id.as_bytes())),
        name: name.as_bytes().into(),
        arguments: arguments(json.as_bytes()),
        written: b"",
    };
    vec![call("a", "read", r#"{"path":1}"#), call("b", "list", "{}")]
}

fn read(mut answer: AnswerReader, body: &str, chunk: usize) -> Vec<Called> {
    for part in body.as_bytes().chunks(chunk) {
        answer.push(&Bytes::copy_from_slice(part));
    }
    answer.finish()
}

#[test]
fn a_stream_says_its_calls_at_any_chunking() {
    for stream in [CHAT, RESPONSES, ANTHROPIC] {
        for chunk in [1, 2, 3, 7, 64, 1000, 10_000] {
            let calls = read(AnswerReader::events(), stream, chunk);
            assert_eq!(calls, expected(), "{chunk} of {stream:.60}");
        }
    }
}

#[test]
fn a_document_says_its_calls_at_any_chunking() {
    for document in DOCUMENTS {
        for chunk in [1, 5, 10_000] {
            let calls = read(AnswerReader::document(), document, chunk);
            assert_eq!(calls, expected(), "{chunk} of {document:.60}");
        }
    }
}

#[test]
fn arguments_that_are_too_long_leave_their_call_to_the_next_request() {
    let part = |index: usize, text: &str| {
        format!(
            "data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"index\":{index},\"id\":\"{index}\",\"function\":{{\"name\":\"f\",\"arguments\":\"{text}\"}}}}]}}}}]}}\n\n"
        )
    };
    let long = "x".repeat(40_000);
    let stream = part(0, &long) + &part(0, &long) + &part(1, "{}");

    let calls = read(AnswerReader::events(), &stream, 4096);

    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].id, Some(digest(&b"1"[..])));
}

#[test]
fn a_call_in_an_event_that_is_too_long_is_left_to_the_next_request() {
    let long = "x".repeat(1024 * 1024);
    let call = |index: usize, name: &str, arguments: &str| {
        format!(
            r#"data: {{"choices":[{{"delta":{{"tool_calls":[{{"index":{index},"id":"{index}","function":{{{name}"arguments":"{arguments}"}}}}]}}}}]}}"#
        )
    };
    let name = r#""name":"f","#;
    let short = call(0, name, "{}") + "\n\n";
    let whole = call(1, name, &long) + "\n\n";
    let rest = call(0, "", &long) + "\n\n";
    for (stream, count) in [
        (short.clone(), 1),
        (whole.clone(), 0),
        (format!("{short}{rest}"), 0),
        (format!("{short}{rest}{}\n\n", call(2, name, "{}")), 1),
    ] {
        let calls = read(AnswerReader::events(), &stream, 4096);
        assert_eq!(calls.len(), count, "{stream:.200}");
    }
}

#[test]
fn the_last_event_may_lack_its_blank_line_and_json_without_a_field_says_no_call() {
    let stop = r#"data: {"type":"content_block_stop","index":2}"#;
    let (head, _) = ANTHROPIC.rsplit_once("event: content_block_stop").unwrap();
    let stream = format!("{head}{stop}");
    assert_eq!(read(AnswerReader::events(), &stream, 7), expected());
    let bare = CHAT.replace("data: {", "{");
    assert!(read(AnswerReader::events(), &bare, 7).is_empty());
}

#[test]
fn no_more_calls_are_kept_than_a_model_makes() {
    let blocks: String = (0..1000)
        .map(|index| format!("data: {{\"type\":\"content_block_start\",\"index\":{index},\"content_block\":{{\"type\":\"tool_use\",\"id\":\"{index}\",\"name\":\"f\",\"input\":{{}}}}}}\n\ndata: {{\"type\":\"content_block_stop\",\"index\":{index}}}\n\n"))
        .collect();
    assert_eq!(read(AnswerReader::events(), &blocks, 4096).len(), 128);

    let chunks: String = (0..1000)
        .map(|index| format!("data: {{\"choices\":[{{\"delta\":{{\"tool_calls\":[{{\"index\":{index},\"function\":{{\"name\":\"f\"}}}}]}}}}]}}\n\n"))
        .collect();
    assert_eq!(read(AnswerReader::events(), &chunks, 4096).len(), 128);

    let name = "f".repeat(2000);
    let item = format!(
        "data: {{\"type\":\"response.output_item.done\",\"item\":{{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"{name}\"}}}}\n\n"
    );
    assert!(read(AnswerReader::events(), &item, 4096).is_empty());

    let whole = format!(r#"{{"output":[],"pad":"{}"}}"#, "x".repeat(1024 * 1024));
    assert!(read(AnswerReader::document(), &whole, 4096).is_empty());
}
