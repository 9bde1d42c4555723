//! The answers of OpenAI's Responses API.

use bytes::Bytes;
use serde_json::{Value, json};

use super::answer::{SimulatedAnswer, SimulatedCall};
use super::request::CREATED;
use super::sse::{EventSequence, typed};

/// The answer of a call that does not stream.
pub(super) fn whole(answer: &SimulatedAnswer<'_>) -> Value {
    response(answer, "completed")
}

/// The answer as a stream.
pub(super) fn events(answer: &SimulatedAnswer<'_>) -> EventSequence {
    let mut sequence_number = 0;
    let mut event = |mut value: Value| {
        value["sequence_number"] = json!(sequence_number);
        sequence_number += 1;
        typed(&value)
    };
    let started = response(answer, "in_progress");
    let done = json!({"type": "response.completed", "response": whole(answer)});
    let [opening, deltas, closing] = match &answer.call {
        Some(call) => called(answer, call),
        None => said(answer),
    };

    // The events are made in the order of the stream, because `event` numbers them.
    let mut all = |values: Vec<Value>| values.into_iter().map(&mut event).collect();
    EventSequence {
        prelude: all(vec![
            json!({"type": "response.created", "response": started}),
            json!({"type": "response.in_progress", "response": started}),
        ]),
        opening: all(opening),
        deltas: all(deltas),
        closing: all(closing.into_iter().chain([done]).collect()),
        ping: Bytes::from_static(b": ping\n\n"),
    }
}

/// The events of a text: its announcement, its deltas, its closing events.
fn said(answer: &SimulatedAnswer<'_>) -> [Vec<Value>; 3] {
    // Adds the place in the output to a text event.
    let place = |mut value: Value| {
        value["item_id"] = json!(item_id(answer));
        value["output_index"] = json!(0);
        value["content_index"] = json!(0);
        value
    };
    let text = answer.text();
    let deltas = answer.deltas.iter().map(|delta| {
        place(json!({"type": "response.output_text.delta", "delta": delta, "logprobs": []}))
    });
    [
        vec![
            added(&item(answer, "in_progress", json!([]))),
            place(json!({"type": "response.content_part.added", "part": part("")})),
        ],
        deltas.collect(),
        vec![
            place(json!({"type": "response.output_text.done", "text": text, "logprobs": []})),
            place(json!({"type": "response.content_part.done", "part": part(&text)})),
            finished(&item(answer, "completed", json!([part(&text)]))),
        ],
    ]
}

/// The events of a tool call: its announcement, its arguments, its closing events.
fn called(answer: &SimulatedAnswer<'_>, call: &SimulatedCall) -> [Vec<Value>; 3] {
    let place = |mut value: Value| {
        value["item_id"] = json!(item_id(answer));
        value["output_index"] = json!(0);
        value
    };
    let arguments = call.arguments.to_string();
    [
        vec![added(&asked(answer, call, "in_progress", ""))],
        vec![place(
            json!({"type": "response.function_call_arguments.delta", "delta": arguments}),
        )],
        vec![
            place(
                json!({"type": "response.function_call_arguments.done", "arguments": arguments, "name": call.name}),
            ),
            finished(&asked(answer, call, "completed", &arguments)),
        ],
    ]
}

fn added(item: &Value) -> Value {
    json!({"type": "response.output_item.added", "output_index": 0, "item": item})
}

fn finished(item: &Value) -> Value {
    json!({"type": "response.output_item.done", "output_index": 0, "item": item})
}

fn response(answer: &SimulatedAnswer<'_>, status: &str) -> Value {
    let completed = status == "completed";
    let output = match &answer.call {
        _ if !completed => json!([]),
        Some(call) => json!([asked(answer, call, status, &call.arguments.to_string())]),
        None => json!([item(answer, status, json!([part(&answer.text())]))]),
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

fn item(answer: &SimulatedAnswer<'_>, status: &str, content: Value) -> Value {
    json!({
        "id": item_id(answer),
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    })
}

fn asked(
    answer: &SimulatedAnswer<'_>,
    call: &SimulatedCall,
    status: &str,
    arguments: &str,
) -> Value {
    json!({
        "id": item_id(answer),
        "type": "function_call",
        "status": status,
        "call_id": call.id,
        "name": call.name,
        "arguments": arguments,
    })
}

fn item_id(answer: &SimulatedAnswer<'_>) -> String {
    format!("msg_sim{}", answer.serial)
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn usage(answer: &SimulatedAnswer<'_>) -> Value {
    let (input, output) = (SimulatedAnswer::INPUT_TOKENS, answer.output_tokens());
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": input + output,
    })
}
