//! The server-sent events of an answer.

use bytes::Bytes;
use serde_json::Value;

/// The events of one whole stream, by their role.
#[derive(Debug)]
pub(super) struct EventSequence {
    /// The events before any output. A pinging upstream sends these and then only `ping`.
    pub(super) prelude: Vec<Bytes>,
    /// The announcement of the output, which in OpenAI Responses already is progress.
    pub(super) opening: Vec<Bytes>,
    /// The deltas of the text, or of the tool call, one event each.
    pub(super) deltas: Vec<Bytes>,
    /// The events after the last delta, with the terminator.
    pub(super) closing: Vec<Bytes>,
    /// A ping, which is a sign of life but no progress.
    pub(super) ping: Bytes,
}

/// An event of one `data` line.
pub(super) fn data(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

/// A named event; its name is the `type` of its data.
pub(super) fn typed(value: &Value) -> Bytes {
    let name = value["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {value}\n\n").into()
}
