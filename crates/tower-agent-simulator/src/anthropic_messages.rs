//! The answers of Anthropic's messages, and of their token count.

use serde_json::{Value, json};

use super::answer::{SimulatedAnswer, SimulatedCall};
use super::sse::{EventSequence, typed};

/// The answer of a call that does not stream.
pub(super) fn whole(answer: &SimulatedAnswer<'_>) -> Value {
    let content = match &answer.call {
        Some(call) => json!([asked(call, &call.arguments)]),
        None => json!([{"type": "text", "text": answer.text()}]),
    };
    let stop_reason = Some(stop_reason(answer));
    message(answer, content, stop_reason, answer.output_tokens())
}

/// The answer of `count_tokens`.
pub(super) fn count() -> Value {
    json!({"input_tokens": SimulatedAnswer::INPUT_TOKENS})
}

/// The answer as a stream.
pub(super) fn events(answer: &SimulatedAnswer<'_>) -> EventSequence {
    let start = message(answer, json!([]), None, 1);
    EventSequence {
        prelude: vec![
            typed(&json!({"type": "message_start", "message": start})),
            typed(&json!({
                "type": "content_block_start",
                "index": 0,
                "content_block": match &answer.call {
                    Some(call) => asked(call, &json!({})),
                    None => json!({"type": "text", "text": ""}),
                },
            })),
        ],
        opening: Vec::new(),
        deltas: match &answer.call {
            Some(call) => {
                let json = call.arguments.to_string();
                vec![delta(
                    &json!({"type": "input_json_delta", "partial_json": json}),
                )]
            }
            None => {
                let deltas = answer.deltas.iter();
                deltas
                    .map(|text| delta(&json!({"type": "text_delta", "text": text})))
                    .collect()
            }
        },
        closing: vec![
            typed(&json!({"type": "content_block_stop", "index": 0})),
            typed(&json!({
                "type": "message_delta",
                "delta": {"stop_reason": stop_reason(answer), "stop_sequence": null},
                "usage": {"output_tokens": answer.output_tokens()},
            })),
            typed(&json!({"type": "message_stop"})),
        ],
        ping: typed(&json!({"type": "ping"})),
    }
}

fn delta(delta: &Value) -> bytes::Bytes {
    typed(&json!({
        "type": "content_block_delta",
        "index": 0,
        "delta": delta,
    }))
}

fn stop_reason(answer: &SimulatedAnswer<'_>) -> &'static str {
    match answer.call {
        Some(_) => "tool_use",
        None => "end_turn",
    }
}

fn asked(call: &SimulatedCall, input: &Value) -> Value {
    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
}

fn message(
    answer: &SimulatedAnswer<'_>,
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
            "input_tokens": SimulatedAnswer::INPUT_TOKENS,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": output_tokens,
            "service_tier": "standard",
        },
    })
}
