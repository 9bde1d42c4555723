//! The answers of OpenAI's chat completions.

use bytes::Bytes;
use serde_json::{Value, json};

use super::answer::{SimulatedAnswer, SimulatedCall};
use super::request::CREATED;
use super::sse::{EventSequence, data};

/// The answer of a call that does not stream.
pub(super) fn whole(answer: &SimulatedAnswer<'_>) -> Value {
    json!({
        "id": id(answer),
        "object": "chat.completion",
        "created": CREATED,
        "model": answer.model,
        "choices": [{
            "index": 0,
            "message": message(answer),
            "logprobs": null,
            "finish_reason": finish_reason(answer),
        }],
        "usage": usage(answer),
        "service_tier": "default",
        "system_fingerprint": "fp_sim",
    })
}

/// The answer as a stream.
pub(super) fn events(answer: &SimulatedAnswer<'_>) -> EventSequence {
    let step = |delta: Value, finish_reason: Option<&str>| {
        let choice = json!({
            "index": 0,
            "delta": delta,
            "logprobs": null,
            "finish_reason": finish_reason,
        });
        data(&chunk(answer, json!([choice]), Value::Null))
    };

    let mut closing = vec![step(json!({}), Some(finish_reason(answer)))];
    if answer.include_usage {
        closing.push(data(&chunk(answer, json!([]), usage(answer))));
    }
    closing.push(Bytes::from_static(b"data: [DONE]\n\n"));

    let role = json!({"role": "assistant", "content": "", "refusal": null});
    EventSequence {
        prelude: vec![step(role, None)],
        opening: Vec::new(),
        deltas: match &answer.call {
            Some(call) => vec![step(json!({"tool_calls": [asked(call)]}), None)],
            None => {
                let deltas = answer.deltas.iter();
                deltas
                    .map(|text| step(json!({"content": text}), None))
                    .collect()
            }
        },
        closing,
        ping: Bytes::from_static(b": ping\n\n"),
    }
}

fn message(answer: &SimulatedAnswer<'_>) -> Value {
    let mut message = json!({
        "role": "assistant",
        "content": answer.text(),
        "refusal": null,
        "annotations": [],
    });
    if let Some(call) = &answer.call {
        message["content"] = Value::Null;
        message["tool_calls"] = json!([asked(call)]);
    }
    message
}

fn finish_reason(answer: &SimulatedAnswer<'_>) -> &'static str {
    match answer.call {
        Some(_) => "tool_calls",
        None => "stop",
    }
}

/// The tool call in this API's form, where the arguments are text.
fn asked(call: &SimulatedCall) -> Value {
    json!({
        "index": 0,
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments.to_string()},
    })
}

fn chunk(answer: &SimulatedAnswer<'_>, choices: Value, usage: Value) -> Value {
    let mut chunk = json!({
        "id": id(answer),
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": answer.model,
        "service_tier": "default",
        "system_fingerprint": "fp_sim",
        "choices": choices,
    });
    // As at OpenAI: with usage requested, every chunk has the key, null in all but the last.
    if answer.include_usage {
        chunk["usage"] = usage;
    }
    chunk
}

fn id(answer: &SimulatedAnswer<'_>) -> String {
    format!("chatcmpl-sim{}", answer.serial)
}

fn usage(answer: &SimulatedAnswer<'_>) -> Value {
    let (input, output) = (SimulatedAnswer::INPUT_TOKENS, answer.output_tokens());
    json!({
        "prompt_tokens": input,
        "completion_tokens": output,
        "total_tokens": input + output,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    })
}
