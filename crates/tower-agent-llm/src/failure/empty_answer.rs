//! Finds answers under a good status that hold nothing, although something was asked for.

use http::HeaderMap;
use serde_json::Value;

use crate::{WholeAnswer, json_scanner::Scanner, names_json};

/// The longest body without usage and stop reason that is searched for content, in bytes.
const SHORT: usize = 4096;

/// Whether a whole answer may hold nothing, as far as its usage and stop reason tell. Nearly no
/// healthy answer of a model does: of those nothing more is read.
#[must_use]
pub fn is_suspect(answer: Option<&WholeAnswer>, body: &[u8]) -> bool {
    match answer {
        Some(answer) => {
            answer.stop_reason().is_none()
                || answer.usage().is_some_and(|usage| usage.output_tokens == 0)
        }
        None => body.len() < SHORT,
    }
}

/// Whether a whole answer holds nothing: it is blank and claims to be JSON, or has no choices, or
/// its model stopped without content and, as the usage states, without a token.
pub fn is_empty(headers: &HeaderMap, body: &[u8]) -> bool {
    if body.trim_ascii().is_empty() {
        return names_json(headers);
    }
    let keys: [&[u8]; 5] = [b"choices", b"output", b"content", b"usage", b"base_resp"];
    let Ok([choices, output, content, usage, base_resp]) = Scanner::members(body, keys) else {
        return false;
    };
    // MiniMax says here why there are no choices.
    if choices.is_none() && base_resp.is_some_and(has_failed) {
        return true;
    }
    let nothing = |span: &[u8]| span == b"null" || is_empty_list(span);
    // A turn with tokens was billed: it is an answer, whatever a proxy has made of it.
    if choices.is_some_and(nothing) {
        return !usage.is_some_and(states_output);
    }
    if choices.or(output).or(content).is_none() || !usage.is_some_and(states_no_output) {
        return false;
    }
    serde_json::from_slice::<Value>(body).is_ok_and(|answer| has_stopped_without_content(&answer))
}

/// Whether the request allows an answer without content: it has stop sequences, or a limit of 0.
#[must_use]
pub fn may_be_empty(request: &[u8]) -> bool {
    let keys: [&[u8]; 5] = [
        b"stop",
        b"stop_sequences",
        b"max_tokens",
        b"max_completion_tokens",
        b"max_output_tokens",
    ];
    let Ok([stop, sequences, limits @ ..]) = Scanner::members(request, keys) else {
        return true;
    };
    let is_set = |span: &[u8]| span != b"null" && span != b"\"\"" && !is_empty_list(span);
    let is_zero = |span: &[u8]| matches!(Scanner::new(span).count(), Ok(Some(0)));
    [stop, sequences].into_iter().flatten().any(is_set) || limits.into_iter().flatten().any(is_zero)
}

fn is_empty_list(span: &[u8]) -> bool {
    let inner = span
        .strip_prefix(b"[")
        .and_then(|rest| rest.strip_suffix(b"]"));
    inner.is_some_and(|inner| inner.trim_ascii().is_empty())
}

/// Whether a `base_resp` has a status other than 0.
fn has_failed(base_resp: &[u8]) -> bool {
    let [status] = Scanner::members(base_resp, [b"status_code"]).unwrap_or_default();
    status.is_some_and(|status| status != b"0")
}

/// Whether a `usage` states 0 tokens of output.
fn states_no_output(usage: &[u8]) -> bool {
    output_of(usage) == Some(0)
}

/// Whether a `usage` states tokens of output.
fn states_output(usage: &[u8]) -> bool {
    output_of(usage).is_some_and(|tokens| tokens > 0)
}

/// The tokens of output that a `usage` states.
fn output_of(usage: &[u8]) -> Option<u64> {
    let keys: [&[u8]; 2] = [b"completion_tokens", b"output_tokens"];
    let counts = Scanner::members(usage, keys).ok()?;
    let span = counts.into_iter().flatten().next()?;
    Scanner::new(span).count().ok()?
}

fn has_stopped_without_content(answer: &Value) -> bool {
    let has_stopped = |reason: &Value| matches!(reason.as_str(), Some("stop" | "end_turn"));
    if let Some(choices) = answer["choices"].as_array() {
        return choices.iter().all(|choice| {
            has_stopped(&choice["finish_reason"])
                && is_blank(&choice["text"])
                && is_blank_message(&choice["message"])
        });
    }
    if let Some(output) = answer["output"].as_array() {
        let is_blank_item = |item: &Value| item["type"] == "message" && is_blank(&item["content"]);
        return answer["status"] == "completed" && output.iter().all(is_blank_item);
    }
    has_stopped(&answer["stop_reason"]) && is_blank(&answer["content"])
}

/// Whether a message has no member beside its role that holds something.
fn is_blank_message(message: &Value) -> bool {
    let members = message.as_object().into_iter().flatten();
    let mut members = members.filter(|(key, _)| *key != "role");
    members.all(|(_, value)| is_blank(value))
}

/// Whether a value is null, an empty text, an empty list, or a list of empty texts.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(parts) => parts.iter().all(|part| match part {
            Value::Object(_) => part["text"].as_str().is_some_and(str::is_empty),
            part => is_blank(part),
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::{is_empty, may_be_empty};
    use crate::WholeAnswer;

    fn judged(body: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", "application/json".parse().unwrap());
        let answer = WholeAnswer::read(body.as_bytes());
        super::is_suspect(answer.as_ref(), body.as_bytes()) && is_empty(&headers, body.as_bytes())
    }

    #[test]
    fn nothing_is_found_in_each_dialect() {
        for body in [
            "",
            " \n",
            r#"{"choices":null}"#,
            r#"{"choices":[ ],"usage":{"completion_tokens":0}}"#,
            r#"{"choices":[{"message":{"role":"assistant","content":null,"tool_calls":[]},"finish_reason":"stop"}],"usage":{"completion_tokens":0}}"#,
            r#"{"choices":[{"text":"","finish_reason":"stop"}],"usage":{"completion_tokens":0}}"#,
            r#"{"content":[],"stop_reason":"end_turn","usage":{"output_tokens":0}}"#,
            r#"{"content":[{"type":"text","text":""}],"stop_reason":"end_turn","usage":{"output_tokens":0}}"#,
            r#"{"output":[],"status":"completed","usage":{"output_tokens":0}}"#,
            r#"{"output":[{"type":"message","content":[{"type":"output_text","text":""}]}],"status":"completed","usage":{"output_tokens":0}}"#,
        ] {
            assert!(judged(body), "{body}");
        }
    }

    #[test]
    fn an_answer_is_no_nothing() {
        for body in [
            "{}",
            "[]",
            "nothing",
            r#"{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],"usage":{"completion_tokens":0}}"#,
            r#"{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"message":{"content":""},"finish_reason":"stop"}],"usage":{"completion_tokens":2}}"#,
            r#"{"choices":[{"message":{"content":""},"finish_reason":"length"}],"usage":{"completion_tokens":0}}"#,
            r#"{"choices":[{"message":{"content":"","tool_calls":[{"id":"c"}]},"finish_reason":"stop"}],"usage":{"completion_tokens":0}}"#,
            r#"{"choices":[{"message":{"content":"","reasoning":"hm"},"finish_reason":"stop"}],"usage":{"completion_tokens":0}}"#,
            r#"{"content":[{"type":"tool_use","id":"t"}],"stop_reason":"end_turn","usage":{"output_tokens":0}}"#,
            r#"{"output":[{"type":"function_call"}],"status":"completed","usage":{"output_tokens":0}}"#,
            r#"{"output":[],"status":"incomplete","usage":{"output_tokens":0}}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}"#,
            r#"{"data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}"#,
            r#"{"input_tokens":5}"#,
        ] {
            assert!(!judged(body), "{body}");
        }
    }

    #[test]
    fn a_request_may_ask_for_nothing() {
        for request in [
            r#"{"stop":"\n"}"#,
            r#"{"stop":["x"]}"#,
            r#"{"stop_sequences":["x"]}"#,
            r#"{"max_tokens":0}"#,
            r#"{"max_output_tokens":0}"#,
            "no JSON",
        ] {
            assert!(may_be_empty(request.as_bytes()), "{request}");
        }
        for request in ["{}", r#"{"stop":null,"stop_sequences":[],"max_tokens":7}"#] {
            assert!(!may_be_empty(request.as_bytes()), "{request}");
        }
    }
}
