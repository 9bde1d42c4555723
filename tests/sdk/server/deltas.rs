//! The beginning of a stream in each dialect, up to its first delta.

use serde_json::{Value, json};

/// What an SDK shows of it.
const TEXT: &str = "So far, ";

/// The events by the operation that was asked for, if it streams.
pub(crate) fn first(operation: &str) -> Option<String> {
    match operation {
        "chat/completions" => Some(chat()),
        "responses" => Some(responses()),
        "messages" => Some(messages()),
        _ => None,
    }
}

fn chat() -> String {
    let chunk = json!({
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "reasons",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": TEXT}, "finish_reason": null}],
    });
    format!("data: {chunk}\n\n")
}

fn responses() -> String {
    let response = json!({
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "in_progress",
        "model": "reasons",
        "output": [],
    });
    let delta = json!({
        "type": "response.output_text.delta",
        "sequence_number": 1,
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": TEXT,
        "logprobs": [],
    });
    named(&json!({"type": "response.created", "sequence_number": 0, "response": response}))
        + &named(&delta)
}

fn messages() -> String {
    let message = json!({
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "reasons",
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": {"input_tokens": 11, "output_tokens": 1},
    });
    let block = json!({"type": "text", "text": ""});
    let delta = json!({"type": "text_delta", "text": TEXT});
    [
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
    ]
    .iter()
    .map(named)
    .collect()
}

/// An event that is named as its `type` says.
fn named(event: &Value) -> String {
    let kind = event["type"].as_str().unwrap_or_default();
    format!("event: {kind}\ndata: {event}\n\n")
}
