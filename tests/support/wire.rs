//! Events and bodies as they stand on the wire.

/// Ends a chat stream.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// A comment: bytes, but no progress.
pub(crate) const PING: &str = ": ping\n\n";

/// The event that a chat stream sends before its first token.
pub(crate) const PRELUDE: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";

/// The one choice of a chat stream has finished.
pub(crate) const FINISH: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

/// The last chunk of a chat stream with usage: 7 tokens in, 2 out.
pub(crate) const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n";

/// A chat delta with the content `a`; the same bytes as `chat("a")`.
pub(crate) const TOKEN: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";

/// Ends an Anthropic stream.
pub(crate) const STOP: &str = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";

/// The JSON body of [`failure`](super::failure).
pub(crate) const ERROR: &str = r#"{"error":{"message":"no","type":"x"}}"#;

/// A chat delta.
pub(crate) fn chat(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
}

/// An Anthropic delta.
pub(crate) fn content_block(text: &str) -> String {
    format!(
        "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
         \"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
    )
}
