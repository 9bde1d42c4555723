//! A reference judge of events by way of `serde_json::Value`: slow, and simple enough to
//! be trusted.

use serde_json::{Map, Value};

use crate::{dialect::Dialect, sse::EventKind};

/// The effects of one event on the marks of a fresh stream.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) kind: Option<EventKind>,
    pub(super) reasoning: bool,
    pub(super) tokens: Option<(u64, u64)>,
    pub(super) stop: Option<String>,
    pub(super) next_sequence: u64,
    pub(super) all_finished: bool,
}

pub(super) fn judge(dialect: Dialect, name: &str, data: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let blank = data.trim_ascii().is_empty();
    let event = match serde_json::from_str(data) {
        Ok(Value::Object(event)) => event,
        _ if blank && !name.is_empty() && dialect != Dialect::OpenAiChat => Map::new(),
        _ => {
            outcome.kind = Some(match data.trim_ascii() {
                "[DONE]" if dialect == Dialect::OpenAiChat => EventKind::Terminator,
                "" => EventKind::Life,
                _ => EventKind::Progress,
            });
            return outcome;
        }
    };
    let kind = match dialect {
        Dialect::OpenAiChat => chat(name, &event, &mut outcome),
        Dialect::OpenAiResponses => responses(name, &event, &mut outcome),
        _ => anthropic(name, &event, &mut outcome),
    };
    outcome.kind = Some(kind);
    outcome
}

/// The types of signs of life that the tests' documents have.
const HEARTBEATS: [&str; 1] = ["keepalive"];

fn chat(name: &str, event: &Map<String, Value>, outcome: &mut Outcome) -> EventKind {
    let choices = event.get("choices").and_then(Value::as_array);
    let of_choices = choices.into_iter().flatten();
    let mut of_choices = of_choices.filter_map(|choice| choice.get("usage"));
    let of_choices = of_choices.rfind(|usage| !usage.is_null());
    let of_groq = event.get("x_groq").and_then(|groq| groq.get("usage"));
    outcome.tokens = [event.get("usage"), of_choices, of_groq]
        .into_iter()
        .filter_map(|usage| tokens(usage, "prompt_tokens", "completion_tokens"))
        .reduce(|one, other| (one.0.max(other.0), one.1.max(other.1)));
    let (mut content, mut text, mut unknown, mut failed) = (false, false, false, false);
    let (mut seen, mut finished) = (Vec::new(), Vec::new());
    for choice in choices.into_iter().flatten().filter_map(Value::as_object) {
        let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
        seen.push(index);
        let reason = choice.get("finish_reason").and_then(Value::as_str);
        if let Some(reason) = reason.filter(|reason| !reason.is_empty()) {
            finished.push(index);
            failed |= reason == "error";
            outcome.stop = Some(reason.to_owned());
        }
        text |= choice.get("text").is_some_and(filled);
        for (key, value) in choice
            .get("delta")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let filled = filled(value);
            match &**key {
                "role" => {}
                "content" if value.is_array() => {
                    let parts = value.as_array().into_iter().flatten();
                    let kinds = parts.map(|part| part.get("type").and_then(Value::as_str));
                    for is_thinking in kinds.map(|kind| kind == Some("thinking")) {
                        content |= is_thinking;
                        text |= !is_thinking;
                    }
                }
                "content" | "refusal" | "tool_calls" | "function_call" => text |= filled,
                "reasoning" | "reasoning_content" | "reasoning_details" => content |= filled,
                _ => unknown |= filled,
            }
        }
    }
    outcome.all_finished = !seen.is_empty()
        && seen
            .iter()
            .all(|index| *index < 128 && finished.contains(index));
    let kind = event.get("type").and_then(Value::as_str);
    let object = event.get("object").and_then(Value::as_str);
    let says_nothing = choices.is_some() && event.get("error").is_some_and(|it| !filled(it));
    if is_error(event) && !says_nothing || failed || kind == Some("error") {
        EventKind::Error
    } else if content || text {
        outcome.reasoning = !text;
        EventKind::Content
    } else if unknown {
        EventKind::Progress
    } else if choices.is_some() || object == Some("chat.completion.chunk") {
        EventKind::Prelude
    } else if kind == Some("ping")
        || kind.is_some_and(|kind| HEARTBEATS.contains(&kind))
        || name.is_empty() && event.is_empty()
    {
        EventKind::Life
    } else {
        EventKind::Progress
    }
}

fn responses(name: &str, event: &Map<String, Value>, outcome: &mut Outcome) -> EventKind {
    if let Some(sequence) = event.get("sequence_number").and_then(Value::as_u64) {
        outcome.next_sequence = sequence.saturating_add(1);
    }
    let kind = match event.get("type").and_then(Value::as_str).unwrap_or(name) {
        kind if kind.ends_with(".delta") => {
            if event.get("delta").is_some_and(|delta| !filled(delta)) {
                return EventKind::Prelude;
            }
            outcome.reasoning = kind.starts_with("response.reasoning");
            return EventKind::Content;
        }
        "response.created" | "response.queued" | "response.in_progress" => EventKind::Prelude,
        "response.completed" | "response.incomplete" => EventKind::Terminator,
        "response.failed" | "response.cancelled" | "error" => EventKind::Error,
        "ping" => EventKind::Life,
        kind if HEARTBEATS.contains(&kind) => EventKind::Life,
        "" if event.is_empty() => EventKind::Life,
        kind if !kind.starts_with("response.") && is_error(event) => EventKind::Error,
        _ => EventKind::Progress,
    };
    if matches!(kind, EventKind::Terminator | EventKind::Error) {
        let response = event.get("response");
        outcome.tokens = tokens(
            response.and_then(|it| it.get("usage")),
            "input_tokens",
            "output_tokens",
        );
        outcome.stop = response
            .and_then(|it| it.get("incomplete_details")?.get("reason")?.as_str())
            .map(str::to_owned);
    }
    kind
}

fn anthropic(name: &str, event: &Map<String, Value>, outcome: &mut Outcome) -> EventKind {
    let delta = event.get("delta");
    match event.get("type").and_then(Value::as_str).unwrap_or(name) {
        "content_block_delta" => {
            let members = delta.and_then(Value::as_object);
            let says = |(key, value): (&String, &Value)| {
                key != "type" && key != "stop_reason" && filled(value)
            };
            if members.is_some_and(|members| !members.iter().any(says)) {
                return EventKind::Prelude;
            }
            let kind = delta.and_then(|delta| delta.get("type")?.as_str());
            outcome.reasoning = matches!(kind, Some("thinking_delta" | "signature_delta"));
            EventKind::Content
        }
        "content_block_start" => {
            let Some(block) = event.get("content_block").and_then(Value::as_object) else {
                return EventKind::Progress;
            };
            let kind = block
                .get("type")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let filled = |key| block.get(key).is_some_and(filled);
            match kind {
                "text" if filled("text") => EventKind::Content,
                "thinking" if !filled("thinking") => EventKind::Prelude,
                "text" => EventKind::Prelude,
                "thinking" | "redacted_thinking" => {
                    outcome.reasoning = true;
                    EventKind::Content
                }
                _ if kind.ends_with("tool_use") || kind.ends_with("tool_result") => {
                    EventKind::Content
                }
                _ => EventKind::Progress,
            }
        }
        "message_start" => {
            let usage = event
                .get("message")
                .and_then(|message| message.get("usage"));
            outcome.tokens = tokens(usage, "input_tokens", "output_tokens");
            EventKind::Prelude
        }
        "message_delta" => {
            outcome.tokens = tokens(event.get("usage"), "input_tokens", "output_tokens");
            outcome.stop = delta
                .and_then(|delta| delta.get("stop_reason")?.as_str())
                .filter(|reason| !reason.is_empty())
                .map(str::to_owned);
            EventKind::Progress
        }
        "message_stop" => EventKind::Terminator,
        "ping" => EventKind::Life,
        "" if event.is_empty() => EventKind::Life,
        "content_block_stop" => EventKind::Progress,
        "error" => EventKind::Error,
        _ if is_error(event) => EventKind::Error,
        kind if HEARTBEATS.contains(&kind) => EventKind::Life,
        _ => EventKind::Progress,
    }
}

fn tokens(usage: Option<&Value>, input: &str, output: &str) -> Option<(u64, u64)> {
    let count = |key| {
        let value = usage?.get(key)?;
        let float = || value.as_f64().filter(|value| *value >= 0.0);
        value.as_u64().or_else(|| Some(float()?.ceil() as u64))
    };
    let (input, output) = (count(input), count(output));
    (input.is_some() || output.is_some()).then(|| (input.unwrap_or(0), output.unwrap_or(0)))
}

fn is_error(event: &Map<String, Value>) -> bool {
    match event.get("error") {
        Some(Value::Object(fields)) => {
            fields.is_empty() || fields.values().any(|value| !value.is_null())
        }
        Some(Value::String(text)) => !text.is_empty(),
        _ => false,
    }
}

fn filled(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        _ => false,
    }
}
