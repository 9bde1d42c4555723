//! A strict reader of event streams, and what makes an answer whole. Neither shares code with the
//! crate.

use serde_json::Value;

use crate::answers::Api;

/// One event: its name, and its data with all lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SseEvent {
    pub(crate) name: String,
    pub(crate) data: String,
}

impl SseEvent {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap_or_default()
    }

    /// The type of the event, by its data or else its name.
    pub(crate) fn kind(&self) -> String {
        let json = self.json();
        json["type"].as_str().unwrap_or(&self.name).to_owned()
    }

    fn is_whole(&self) -> bool {
        self.data == "[DONE]" || serde_json::from_str::<Value>(&self.data).is_ok()
    }

    pub(crate) fn is_error(&self, api: Api) -> bool {
        let error = !self.json()["error"].is_null();
        match api {
            Api::Chat => error,
            Api::Messages => self.name == "error",
            Api::Responses => self.kind() == "error",
        }
    }

    pub(crate) fn is_terminator(&self, api: Api) -> bool {
        match api {
            Api::Chat => self.data == "[DONE]",
            Api::Messages => self.kind() == "message_stop",
            Api::Responses => {
                matches!(&*self.kind(), "response.completed" | "response.incomplete")
            }
        }
    }
}

/// Reads the lines of `lines` into an event; `None` if it has no data.
fn event_of(lines: &[&str]) -> Option<SseEvent> {
    let value = |line: &str, name: &str| -> Option<String> {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        Some(value.strip_prefix(' ').unwrap_or(value).to_owned())
    };
    let data: Vec<_> = lines.iter().filter_map(|it| value(it, "data")).collect();
    let name = lines.iter().filter_map(|it| value(it, "event")).next_back();
    (!data.is_empty()).then(|| SseEvent {
        name: name.unwrap_or_default(),
        data: data.join("\n"),
    })
}

/// The events of a stream with LF line ends that came as a whole. At a clean end, a last event
/// whose blank line is missing is one if its JSON is complete.
pub(crate) fn events_of(stream: &[u8], is_clean: bool) -> Vec<SseEvent> {
    let text = String::from_utf8_lossy(stream);
    let mut blocks: Vec<_> = text.split("\n\n").collect();
    let rest = blocks.pop().unwrap();
    let lines = |block: &str| event_of(&block.lines().collect::<Vec<_>>());
    let mut events: Vec<_> = blocks.into_iter().filter_map(lines).collect();
    let last = lines(rest).filter(|event| is_clean && event.is_whole());
    // What follows the data is another field, of which a part may be lost.
    let ends_in_data = rest
        .lines()
        .next_back()
        .is_some_and(|it| it.starts_with("data:"));
    events.extend(last.filter(|_| ends_in_data));
    events
}

/// Whether these events are an answer to which nothing is missing but its terminator.
pub(crate) fn is_whole(api: Api, events: &[SseEvent]) -> bool {
    match api {
        Api::Chat => {
            let mut open = Vec::new();
            let mut finished = Vec::new();
            for event in events {
                for choice in event.json()["choices"].as_array().into_iter().flatten() {
                    let index = choice["index"].as_u64().unwrap_or(0);
                    let is_last = choice["finish_reason"].is_string();
                    if is_last { &mut finished } else { &mut open }.push(index);
                }
            }
            !finished.is_empty() && open.iter().all(|index| finished.contains(index))
        }
        Api::Messages => events.iter().any(|event| {
            event.kind() == "message_delta" && event.json()["delta"]["stop_reason"].is_string()
        }),
        Api::Responses => events.iter().any(|event| {
            let kind = event.kind();
            event.is_terminator(api) || kind == "response.done"
        }),
    }
}

/// Whether the model has said anything in these events.
pub(crate) fn has_content(api: Api, events: &[SseEvent]) -> bool {
    events.iter().any(|event| match api {
        Api::Chat => {
            let json = event.json();
            let delta = &json["choices"][0]["delta"];
            ["content", "reasoning_content", "tool_calls"]
                .iter()
                .any(|key| !delta[key].is_null() && delta[key] != "")
        }
        Api::Messages => event.kind() == "content_block_delta",
        Api::Responses => event.kind().ends_with(".delta"),
    })
}

/// Reads a stream as the strictest client does: each line has a known field, each event has data
/// that is JSON or `[DONE]`, and nothing stands behind the last blank line.
pub(crate) fn strict(text: &str) -> Result<Vec<SseEvent>, String> {
    let Some(text) = text.strip_suffix("\n\n") else {
        return Err("no blank line at the end".into());
    };
    let mut events = Vec::new();
    for block in text.split("\n\n") {
        let lines: Vec<_> = block.split('\n').collect();
        let is_known = |line: &&str| line.starts_with("data: ") || line.starts_with("event: ");
        if let Some(line) = lines.iter().find(|line| !is_known(line)) {
            return Err(format!("a line {line:?}"));
        }
        match event_of(&lines) {
            Some(event) if event.is_whole() => events.push(event),
            event => return Err(format!("an event {event:?}")),
        }
    }
    Ok(events)
}
