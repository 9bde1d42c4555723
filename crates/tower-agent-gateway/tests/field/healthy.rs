//! Good answers, in the shape that a request asks for.

use serde_json::{Value, json};

use super::case::Operation;

/// The path of an operation's route.
pub(crate) const fn path(operation: Operation) -> &'static str {
    match operation {
        Operation::Chat => "/v1/chat/completions",
        Operation::Responses => "/v1/responses",
        Operation::Messages => "/v1/messages",
        Operation::CountTokens => "/v1/messages/count_tokens",
        Operation::Embeddings => "/v1/embeddings",
        Operation::Images => "/v1/images/generations",
    }
}

/// The operation that an upstream is asked for by this path.
pub(crate) fn operation(asked: &str) -> Operation {
    let all = [
        Operation::Chat,
        Operation::Responses,
        Operation::Messages,
        Operation::CountTokens,
        Operation::Embeddings,
        Operation::Images,
    ];
    let mut all = all.into_iter();
    let found = all.find(|operation| path(*operation) == asked);
    found.unwrap_or_else(|| panic!("an upstream is asked for {asked}"))
}

/// A whole answer that does not stream.
pub(crate) fn whole(operation: Operation, model: &str) -> Value {
    match operation {
        Operation::Chat => json!({
            "id": "chatcmpl-1", "object": "chat.completion", "model": model,
            "choices": [{"index": 0, "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Hi."}}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
        }),
        Operation::Responses => response(model, "completed"),
        Operation::Messages => json!({
            "id": "msg_1", "type": "message", "role": "assistant", "model": model,
            "content": [{"type": "text", "text": "Hi."}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 5, "output_tokens": 2},
        }),
        Operation::CountTokens => json!({"input_tokens": 5}),
        Operation::Embeddings => json!({
            "object": "list", "model": model,
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
            "usage": {"prompt_tokens": 5, "total_tokens": 5},
        }),
        Operation::Images => json!({"created": 1, "data": [{"b64_json": "AA=="}]}),
    }
}

fn response(model: &str, status: &str) -> Value {
    json!({
        "id": "resp_1", "object": "response", "status": status, "model": model,
        "output": [{"id": "msg_1", "type": "message", "role": "assistant", "status": status,
            "content": [{"type": "output_text", "text": "Hi.", "annotations": []}]}],
        "usage": {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
    })
}

/// The events of a stream up to its first content, and those that end it.
pub(crate) fn events(operation: Operation, model: &str) -> [Vec<String>; 2] {
    let chat = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        let object = "chat.completion.chunk";
        json!({"id": "chatcmpl-1", "object": object, "model": model, "choices": [choice]})
    };
    match operation {
        Operation::Messages => [
            vec![
                named(&json!({"type": "message_start", "message": {
                    "id": "msg_1", "type": "message", "role": "assistant", "model": model,
                    "content": [], "stop_reason": null,
                    "usage": {"input_tokens": 5, "output_tokens": 1},
                }})),
                named(&json!({"type": "content_block_start", "index": 0,
                    "content_block": {"type": "text", "text": ""}})),
                named(&json!({"type": "content_block_delta", "index": 0,
                    "delta": {"type": "text_delta", "text": "Hi."}})),
            ],
            vec![
                named(&json!({"type": "content_block_stop", "index": 0})),
                named(
                    &json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
                    "usage": {"output_tokens": 2}}),
                ),
                named(&json!({"type": "message_stop"})),
            ],
        ],
        Operation::Responses => [
            vec![
                named(
                    &json!({"type": "response.created", "sequence_number": 0, "response": {
                        "id": "resp_1", "object": "response", "status": "in_progress",
                        "model": model, "output": [],
                    }}),
                ),
                named(
                    &json!({"type": "response.output_text.delta", "sequence_number": 1,
                    "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": "Hi."}),
                ),
            ],
            vec![named(
                &json!({"type": "response.completed", "sequence_number": 2,
                "response": response(model, "completed")}),
            )],
        ],
        _ => [
            vec![data(&chat(
                json!({"role": "assistant", "content": "Hi."}),
                Value::Null,
            ))],
            vec![
                data(&chat(json!({}), json!("stop"))),
                "data: [DONE]".to_owned(),
            ],
        ],
    }
}

/// An event with the name that its type is.
fn named(event: &Value) -> String {
    format!(
        "event: {}\n{}",
        event["type"].as_str().unwrap(),
        data(event)
    )
}

fn data(event: &Value) -> String {
    format!("data: {event}")
}

/// An event with an error's body, as the operation's API sends it.
pub(crate) fn error_event(operation: Operation, body: &str) -> String {
    let event: Value = serde_json::from_str(body).unwrap_or_default();
    match (operation, event["type"].as_str()) {
        (Operation::Messages | Operation::Responses, Some(kind)) => {
            format!("event: {kind}\ndata: {body}")
        }
        (Operation::Messages | Operation::Responses, None) => format!("event: error\ndata: {body}"),
        _ => format!("data: {body}"),
    }
}
