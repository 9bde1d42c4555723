//! An answer as server-sent events.

use bytes::Bytes;
use serde_json::Value;

/// The events of one whole stream, by the part they play.
#[derive(Debug)]
pub(super) struct Events {
    /// Before anything was generated; with `life`, all that a pinging upstream shows.
    pub(super) prelude: Vec<Bytes>,
    /// Announces the output: already progress in OpenAI Responses.
    pub(super) opening: Vec<Bytes>,
    /// One per delta of the text.
    pub(super) deltas: Vec<Bytes>,
    /// What follows the last delta, terminator included.
    pub(super) closing: Vec<Bytes>,
    /// A sign of life that is no progress.
    pub(super) life: Bytes,
}

/// An event of one `data` line.
pub(super) fn data(value: &Value) -> Bytes {
    format!("data: {value}\n\n").into()
}

/// A named event whose name is the `type` of its data.
pub(super) fn typed(value: &Value) -> Bytes {
    let name = value["type"].as_str().unwrap_or_default();
    format!("event: {name}\ndata: {value}\n\n").into()
}
