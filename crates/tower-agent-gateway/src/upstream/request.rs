//! The parts of a request that the simulated upstream reads.

use serde::Deserialize;
use serde_json::Value;

use super::behaviour::Behaviour;
use super::tools::ToolCall;

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
pub(super) enum Operation {
    Chat,
    Responses,
    Messages,
    CountTokens,
    Embeddings,
}

/// One answer to be written in a dialect.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    /// Makes ids unique per server.
    pub(super) serial: u64,
    pub(super) model: &'a str,
    pub(super) deltas: Vec<String>,
    /// The tool call that the answer contains instead of a text.
    pub(super) call: Option<ToolCall>,
    /// Whether a chat stream ends with its usage.
    pub(super) include_usage: bool,
}

impl<'a> Answer<'a> {
    pub(super) fn new(
        serial: u64,
        request: &'a Request,
        behaviour: Behaviour,
        body: &[u8],
    ) -> Self {
        Self {
            serial,
            model: &request.model,
            deltas: behaviour.deltas(body),
            call: ToolCall::next(behaviour, request, serial),
            include_usage: request
                .stream_options
                .as_ref()
                .is_some_and(|options| options.include_usage),
        }
    }

    pub(super) fn text(&self) -> String {
        self.deltas.concat()
    }

    /// Tokens of the prompt, the same for every request.
    pub(super) const INPUT_TOKENS: usize = 9;

    /// One token per delta.
    pub(super) fn output_tokens(&self) -> usize {
        self.deltas.len()
    }
}

/// The creation time of all objects: Unix seconds, fixed so that answers repeat.
pub(super) const CREATED: u64 = 1_760_000_000;
