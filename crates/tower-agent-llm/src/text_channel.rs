//! The keys under which a model's text stands in events and answers.

/// The channels in which generated text is counted.
///
/// Some upstreams send the same reasoning under several keys, so each of these keys has a channel
/// of its own. All other text is `Answer`, also Anthropic's thinking.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TextChannel {
    Answer,
    Reasoning,
    ReasoningContent,
    ReasoningDetails,
}

impl TextChannel {
    /// The channel of strings under this key; `None` if they are not text of the model.
    pub(crate) fn of_key(key: &[u8]) -> Option<Self> {
        Some(match key {
            // `input` is that of a custom tool: a function's has the key `arguments`.
            b"content" | b"text" | b"delta" | b"arguments" | b"partial_json" | b"thinking"
            | b"refusal" | b"input" => Self::Answer,
            b"reasoning" => Self::Reasoning,
            b"reasoning_content" => Self::ReasoningContent,
            _ => return None,
        })
    }
}
