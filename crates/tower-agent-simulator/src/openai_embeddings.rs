//! The answers of OpenAI's embeddings.

use serde_json::{Value, json};

use super::answer::SimulatedAnswer;
use super::request::Request;

/// The same vector as [`VECTOR`], as little-endian floats of four bytes in base64.
const ENCODED: &str = "AAAAPwAAgL4AAAA+AAAAAA==";
const VECTOR: [f32; 4] = [0.5, -0.25, 0.125, 0.0];

/// The answer: a short vector per input, in the requested encoding. Not every SDK reads both
/// encodings.
pub(super) fn whole(request: &Request) -> Value {
    let vector = match request.encoding_format.as_deref() {
        Some("base64") => json!(ENCODED),
        _ => json!(VECTOR),
    };
    let data: Vec<_> = (0..inputs(&request.input))
        .map(|index| json!({"object": "embedding", "index": index, "embedding": vector}))
        .collect();
    let tokens = SimulatedAnswer::INPUT_TOKENS * data.len();
    json!({
        "object": "list",
        "data": data,
        "model": request.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })
}

/// The number of inputs: a list of numbers is one tokenized input, another list one per entry.
fn inputs(input: &Value) -> usize {
    match input.as_array() {
        Some(list) if !list.first().is_some_and(Value::is_number) => list.len(),
        _ => 1,
    }
}
