//! What the upstream reads of a request.

use serde::Deserialize;
use serde_json::Value;

/// The fields that matter here; everything else is accepted unread.
#[derive(Debug, Deserialize)]
pub(super) struct Request {
    pub(super) model: String,
    #[serde(default)]
    pub(super) stream: bool,
    #[serde(default)]
    pub(super) stream_options: Option<StreamOptions>,
    #[serde(default)]
    pub(super) input: Value,
    #[serde(default)]
    pub(super) messages: Value,
    #[serde(default)]
    pub(super) tools: Vec<Value>,
    /// Of embeddings: `float` or `base64`.
    #[serde(default)]
    pub(super) encoding_format: Option<String>,
}

/// OpenAI's chat `stream_options`.
#[derive(Debug, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: bool,
}

/// Which API was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Chat,
    Responses,
    Messages,
    CountTokens,
    Embeddings,
}

/// When the simulated world was made: Unix seconds, fixed so that answers repeat.
pub(super) const CREATED: u64 = 1_760_000_000;
