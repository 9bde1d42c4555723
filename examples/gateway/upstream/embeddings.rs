//! OpenAI embeddings.

use serde_json::{Value, json};

use super::request::{Answer, Request};

/// A short vector of floats per input, whatever encoding was asked for: the SDKs take either.
pub(super) fn whole(request: &Request) -> Value {
    let data: Vec<_> = (0..inputs(&request.input))
        .map(|index| json!({"object": "embedding", "index": index, "embedding": [0.5, -0.25, 0.125, 0.0]}))
        .collect();
    let tokens = Answer::INPUT_TOKENS * data.len();
    json!({
        "object": "list",
        "data": data,
        "model": request.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })
}

/// A list of numbers is one input, already tokenised; any other list is one input per entry.
fn inputs(input: &Value) -> usize {
    match input.as_array() {
        Some(list) if !list.first().is_some_and(Value::is_number) => list.len(),
        _ => 1,
    }
}
