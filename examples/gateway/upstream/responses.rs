//! OpenAI Responses.

use bytes::Bytes;
use serde_json::{Value, json};

use super::request::{Answer, CREATED};
use super::sse::{Events, typed};

/// The answer of a call that does not stream.
pub(super) fn whole(answer: &Answer<'_>) -> Value {
    response(answer, "completed")
}

/// The answer as a stream.
pub(super) fn events(answer: &Answer<'_>) -> Events {
    let mut sequence_number = 0;
    let mut event = |mut value: Value| {
        value["sequence_number"] = json!(sequence_number);
        sequence_number += 1;
        typed(&value)
    };
    // Where in the output a text event belongs.
    let place = |mut value: Value| {
        value["item_id"] = json!(item_id(answer));
        value["output_index"] = json!(0);
        value["content_index"] = json!(0);
        value
    };
    let started = response(answer, "in_progress");
    let text = answer.text();

    // Built in the order of the stream: `event` counts.
    let prelude = vec![
        event(json!({"type": "response.created", "response": started})),
        event(json!({"type": "response.in_progress", "response": started})),
    ];
    let opening = vec![
        event(json!({
            "type": "response.output_item.added",
            "output_index": 0,
            "item": item(answer, "in_progress", json!([])),
        })),
        event(place(
            json!({"type": "response.content_part.added", "part": part("")}),
        )),
    ];
    let deltas = answer
        .deltas
        .iter()
        .map(|delta| {
            event(place(json!({
                "type": "response.output_text.delta",
                "delta": delta,
                "logprobs": [],
            })))
        })
        .collect();
    let closing = vec![
        event(place(json!({
            "type": "response.output_text.done",
            "text": text,
            "logprobs": [],
        }))),
        event(place(
            json!({"type": "response.content_part.done", "part": part(&text)}),
        )),
        event(json!({
            "type": "response.output_item.done",
            "output_index": 0,
            "item": item(answer, "completed", json!([part(&text)])),
        })),
        event(json!({"type": "response.completed", "response": whole(answer)})),
    ];

    Events {
        prelude,
        opening,
        deltas,
        closing,
        life: Bytes::from_static(b": ping\n\n"),
    }
}

fn response(answer: &Answer<'_>, status: &str) -> Value {
    let completed = status == "completed";
    let output = if completed {
        json!([item(answer, status, json!([part(&answer.text())]))])
    } else {
        json!([])
    };
    json!({
        "id": format!("resp_sim{}", answer.serial),
        "object": "response",
        "created_at": CREATED,
        "completed_at": completed.then_some(CREATED),
        "status": status,
        "background": false,
        "error": null,
        "incomplete_details": null,
        "instructions": null,
        "max_output_tokens": null,
        "model": answer.model,
        "output": output,
        "parallel_tool_calls": true,
        "previous_response_id": null,
        "reasoning": {"effort": null, "summary": null},
        "store": true,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": completed.then(|| usage(answer)),
        "user": null,
        "metadata": {},
    })
}

fn item(answer: &Answer<'_>, status: &str, content: Value) -> Value {
    json!({
        "id": item_id(answer),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    })
}

fn item_id(answer: &Answer<'_>) -> String {
    format!("msg_sim{}", answer.serial)
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn usage(answer: &Answer<'_>) -> Value {
    let (input, output) = (Answer::INPUT_TOKENS, answer.output_tokens());
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input + output,
    })
}
