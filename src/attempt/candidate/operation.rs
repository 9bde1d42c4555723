//! The operations of a model API, by path, and the APIs that a candidate speaks.

use http::{Method, Request};

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

/// Whether a request has a model write something, so that it is a turn of its run.
/// Embeddings, counts of tokens and lists of models do not; what is not known does,
/// and what may be two things.
pub(crate) fn generates<B>(request: &Request<B>) -> bool {
    let path = request.uri().path();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    match Operation::from_path(path) {
        None => !(reads && is_of_models(path)),
        Some(operation @ (Operation::Embeddings | Operation::CountTokens)) => {
            // Who routes by the beginning of a path may see another operation in it.
            let path = path.strip_suffix('/').unwrap_or(path);
            let base = path.strip_suffix(operation.path());
            base.and_then(Operation::from_path).is_some()
        }
        Some(_) => true,
    }
}

/// A list of models, or one of them.
fn is_of_models(path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut segments = path.rsplit('/');
    segments.next() == Some("models") || segments.next() == Some("models")
}

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
