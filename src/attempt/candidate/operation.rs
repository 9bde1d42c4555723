//! The operations of a model API, by path, and the APIs that a candidate speaks.

use http::{Method, Request};

/// An operation of a model API, by the last segments of the request's path.
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
    pub(crate) const ALL: [Self; 8] = [
        Self::ChatCompletions,
        Self::Responses,
        Self::Messages,
        Self::CountTokens,
        Self::Embeddings,
        Self::ImageGenerations,
        Self::ImageEdits,
        Self::ImageVariations,
    ];

    /// Finds the operation at the end of a path; no path ends with two of them.
    pub(crate) fn from_path(path: &str) -> Option<Self> {
        let path = path.strip_suffix('/').unwrap_or(path);
        Self::ALL.into_iter().find(|operation| {
            path.strip_suffix(operation.path())
                .is_some_and(|base| base.is_empty() || base.ends_with('/'))
        })
    }

    /// The operation's path below the base URL, without a leading slash.
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

/// The path above the operation that a path ends in; `None` if it ends in none.
///
/// The list of models and the operations that no candidate takes count, too. A deployment may have
/// any name, also that of an operation.
#[cfg(feature = "config")]
pub(crate) fn without_last_operation(path: &str) -> Option<&str> {
    let path = path.trim_end_matches('/');
    let known = Operation::ALL.map(Operation::path);
    let mut known = known.into_iter().chain(["completions", "models"]);
    let base = known.find_map(|operation| {
        let at = path.len().checked_sub(operation.len())?;
        let base = path.get(..at)?.strip_suffix('/')?;
        path[at..].eq_ignore_ascii_case(operation).then_some(base)
    })?;
    let is_name = base.ends_with("/deployments") || base.ends_with("/models");
    (!is_name).then(|| base.trim_end_matches('/'))
}

/// Whether the request is a turn of its run: a model generates output for it.
///
/// Embeddings, images, counts of tokens, and a GET or HEAD of models are not turns. Any other
/// request is one, also at an unknown path, and at a path in which another operation precedes the
/// last one.
pub(crate) fn generates<B>(request: &Request<B>) -> bool {
    let path = request.uri().path();
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    match Operation::from_path(path) {
        None => !(reads && is_of_models(path)),
        Some(Operation::ChatCompletions | Operation::Responses | Operation::Messages) => true,
        Some(operation) => {
            // A server that routes by the beginning of the path may find another operation.
            let path = path.strip_suffix('/').unwrap_or(path);
            let base = path.strip_suffix(operation.path());
            base.and_then(Operation::from_path).is_some()
        }
    }
}

/// Whether `path` is that of the list of models, or of one model.
fn is_of_models(path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    let mut segments = path.rsplit('/');
    segments.next() == Some("models") || segments.next() == Some("models")
}

/// The API of the requests that a [`Candidate`](crate::attempt::Candidate) accepts.
///
/// A request in another dialect is not sent to the candidate; no layer translates requests.
///
/// ```
/// use tower_agent::{Candidate, CandidateDialect};
///
/// let candidate = Candidate::new("claude").dialect(CandidateDialect::Anthropic);
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CandidateDialect {
    /// The candidate accepts requests in each dialect.
    #[default]
    Any,
    /// The candidate accepts requests to OpenAI's `chat/completions`, `responses`, `embeddings` and
    /// `images`, and to compatible APIs.
    OpenAi,
    /// The candidate accepts requests to Anthropic's `messages` and `messages/count_tokens`.
    Anthropic,
}

impl CandidateDialect {
    /// The dialect's short name, for messages to people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }

    /// The dialect of the requests for `operation`.
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
