//! Anthropic messages and their token count.

use serde_json::{Value, json};

use super::request::Answer;
use super::sse::{Events, typed};

/// The answer of a call that does not stream.
pub(super) fn whole(answer: &Answer<'_>) -> Value {
    let content = json!([{"type": "text", "text": answer.text()}]);
    message(answer, content, Some("end_turn"), answer.output_tokens())
}

/// The answer of `count_tokens`.
pub(super) fn count() -> Value {
    json!({"input_tokens": Answer::INPUT_TOKENS})
}

/// The answer as a stream.
pub(super) fn events(answer: &Answer<'_>) -> Events {
    let start = message(answer, json!([]), None, 1);
    Events {
        prelude: vec![
            typed(&json!({"type": "message_start", "message": start})),
            typed(&json!({
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "text", "text": ""},
            })),
        ],
        opening: Vec::new(),
        deltas: answer.deltas.iter().map(|text| delta(text)).collect(),
        closing: vec![
            typed(&json!({"type": "content_block_stop", "index": 0})),
            typed(&json!({
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": null},
                "usage": {"output_tokens": answer.output_tokens()},
            })),
            typed(&json!({"type": "message_stop"})),
        ],
        life: typed(&json!({"type": "ping"})),
    }
}

fn delta(text: &str) -> bytes::Bytes {
    typed(&json!({
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": text},
    }))
}

fn message(
    answer: &Answer<'_>,
    content: Value,
    stop_reason: Option<&str>,
    output_tokens: usize,
) -> Value {
    json!({
        "id": format!("msg_sim{}", answer.serial),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": null,
        "usage": {
            "input_tokens": Answer::INPUT_TOKENS,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output_tokens,
            "service_tier": "standard",
        },
    })
}
