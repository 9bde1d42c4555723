use super::Dialect;

/// The names of a request's operation and of its API, as OpenTelemetry's convention for generative
/// AI has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenAiOperation {
    /// The name of the operation, such as `chat`.
    pub name: &'static str,
    /// The name of the API's provider; `None` for an API that is not known.
    pub provider: Option<&'static str>,
}

impl GenAiOperation {
    /// The operation for a path of no known API.
    pub const UNKNOWN: Self = Self::new("other", None);

    const fn new(name: &'static str, provider: Option<&'static str>) -> Self {
        Self { name, provider }
    }

    /// The operation by the last segments of a request's path, or else by the request's dialect.
    #[must_use]
    pub fn of(path: &str, dialect: Dialect) -> &'static Self {
        let path = path.strip_suffix('/').unwrap_or(path);
        let (parents, last) = path.rsplit_once('/').unwrap_or(("", path));
        let is_image = parents.ends_with("images");
        // A known path beats `dialect`, which the program may set for all of its requests.
        match (Dialect::from_path(path), last) {
            (Dialect::Anthropic, "count_tokens") => {
                &const { Self::new("count_tokens", Some("anthropic")) }
            }
            (Dialect::Any, "embeddings") => &const { Self::new("embeddings", Some("openai")) },
            (Dialect::Any, "completions") => {
                &const { Self::new("text_completion", Some("openai")) }
            }
            (Dialect::Any, "generations" | "edits" | "variations") if is_image => {
                &const { Self::new("generate_content", Some("openai")) }
            }
            (Dialect::Any, _) => Self::in_dialect(dialect),
            (known, _) => Self::in_dialect(known),
        }
    }

    /// The operation of a request for an answer in this dialect.
    const fn in_dialect(dialect: Dialect) -> &'static Self {
        match dialect {
            Dialect::Any => &Self::UNKNOWN,
            Dialect::OpenAiChat | Dialect::OpenAiResponses => {
                &const { Self::new("chat", Some("openai")) }
            }
            Dialect::Anthropic => &const { Self::new("chat", Some("anthropic")) },
            Dialect::Custom(_) => &const { Self::new("chat", None) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Dialect, GenAiOperation};

    /// covers: T103
    #[test]
    fn an_operation_is_named_by_a_known_path_alone() {
        for (path, name, provider) in [
            ("/v1/chat/completions", "chat", Some("openai")),
            ("/v1/responses/", "chat", Some("openai")),
            ("/v1/messages", "chat", Some("anthropic")),
            (
                "/v1/messages/count_tokens",
                "count_tokens",
                Some("anthropic"),
            ),
            ("/v1/embeddings", "embeddings", Some("openai")),
            ("/v1/completions", "text_completion", Some("openai")),
            ("/v1/images/edits", "generate_content", Some("openai")),
            ("/v1/audio/edits", "other", None),
            ("/v1/made-up", "other", None),
            ("", "other", None),
        ] {
            let found = GenAiOperation::of(path, Dialect::from_path(path));
            assert_eq!(*found, GenAiOperation { name, provider }, "{path}");
        }
        // A program may name a dialect for all of its requests.
        let known = |path| GenAiOperation::of(path, Dialect::OpenAiChat).name;
        assert_eq!(known("/v1/embeddings"), "embeddings");
        assert_eq!(known("/ask"), "chat");
    }
}
