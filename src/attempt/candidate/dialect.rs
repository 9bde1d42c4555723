use super::operation::Operation;

/// Which API's requests a [`Candidate`](crate::attempt::Candidate) understands. A
/// request in another dialect is not sent to it; nothing is translated.
///
/// ```
/// use tower_agent::{Candidate, CandidateDialect};
///
/// let candidate = Candidate::new("claude").dialect(CandidateDialect::Anthropic);
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CandidateDialect {
    /// Whatever comes.
    #[default]
    Any,
    /// OpenAI's `chat/completions`, `responses`, `embeddings` and `images`, and
    /// what imitates them.
    OpenAi,
    /// Anthropic's `messages` and `messages/count_tokens`.
    Anthropic,
}

impl CandidateDialect {
    /// A short name for messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }

    /// The dialect of a request.
    pub(crate) const fn of(operation: Operation) -> Self {
        if operation.is_anthropic() {
            Self::Anthropic
        } else {
            Self::OpenAi
        }
    }

    pub(crate) fn speaks(self, operation: Operation) -> bool {
        self == Self::Any || self == Self::of(operation)
    }
}
