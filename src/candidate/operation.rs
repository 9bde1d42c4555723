/// What is asked of an upstream, by the last segments of the request's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    ChatCompletions,
    Responses,
    Messages,
    CountTokens,
    Embeddings,
    ImageGenerations,
    ImageEdits,
    ImageVariations,
}

impl Operation {
    pub(super) const ALL: [Self; 8] = [
        Self::ChatCompletions,
        Self::Responses,
        Self::Messages,
        Self::CountTokens,
        Self::Embeddings,
        Self::ImageGenerations,
        Self::ImageEdits,
        Self::ImageVariations,
    ];

    /// None of them is the end of another, so at most one fits.
    pub(crate) fn from_path(path: &str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        Self::ALL.into_iter().find(|operation| {
            path.strip_suffix(operation.path())
                .is_some_and(|base| base.is_empty() || base.ends_with('/'))
        })
    }

    /// Its path below the base URL, without a leading slash.
    pub(crate) const fn path(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat/completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::CountTokens => "messages/count_tokens",
            Self::Embeddings => "embeddings",
            Self::ImageGenerations => "images/generations",
            Self::ImageEdits => "images/edits",
            Self::ImageVariations => "images/variations",
        }
    }

    pub(crate) const fn is_anthropic(self) -> bool {
        matches!(self, Self::Messages | Self::CountTokens)
    }
}
