//! The answers of OpenAI's images, and the model in the forms of edits and variations.

use serde_json::{Value, json};

use super::request::{CREATED, Request};

/// A PNG of one transparent pixel, in base64.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

/// The answer: as many images as the request asks for, at most ten.
pub(super) fn whole(request: &Request) -> Value {
    let count = request.n.unwrap_or(1).min(10);
    let data: Vec<Value> = (0..count).map(|_| json!({"b64_json": PIXEL})).collect();
    json!({"created": CREATED, "data": data})
}

/// Reads the model of a form, whose other fields have no effect.
///
/// This is not a parser of forms: it finds the field as common clients write it.
pub(super) fn form(body: &[u8]) -> Option<Request> {
    let field = b"form-data; name=\"model\"\r\n\r\n";
    let at = body.windows(field.len()).position(|it| it == field)? + field.len();
    let end = body[at..].windows(2).position(|it| it == b"\r\n")?;
    let model = std::str::from_utf8(&body[at..at + end]).ok()?;
    serde_json::from_value(json!({ "model": model })).ok()
}
