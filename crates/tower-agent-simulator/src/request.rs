//! The parts of a request that the simulated upstream reads.

use serde::Deserialize;
use serde_json::Value;

/// The fields that the upstream reads; others are ignored.
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
    /// The number of images.
    #[serde(default)]
    pub(super) n: Option<usize>,
    /// The encoding of embeddings: `float` or `base64`.
    #[serde(default)]
    pub(super) encoding_format: Option<String>,
}

/// OpenAI's chat `stream_options`.
#[derive(Debug, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: bool,
}

/// The API that the request called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Responses,
    Messages,
    CountTokens,
    Embeddings,
    Images,
}

/// The time of creation of all models and answers, in Unix seconds; fixed so that answers repeat.
pub(super) const CREATED: u64 = 1_760_000_000;
