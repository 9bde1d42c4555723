use super::Dialect;

/// The names of a request's operation and of its API, as OpenTelemetry's convention for generative
/// AI has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GenAiOperation {
    pub(crate) name: &'static str,
    /// `None` for an API that is not known.
    pub(crate) provider: Option<&'static str>,
}

impl GenAiOperation {
    /// The operation for a path of no known API.
    pub(crate) const UNKNOWN: Self = Self {
        name: "other",
        provider: None,
    };

    /// The operation by the last segments of a request's path, or else by the request's dialect.
    pub(crate) fn of(path: &str, dialect: Dialect) -> &'static Self {
        let path = path.strip_suffix('/').unwrap_or(path);
        let (parents, last) = path.rsplit_once('/').unwrap_or(("", path));
        let is_image = parents.ends_with("images");
        // A known path beats `dialect`, which the program may set for all of its requests.
        match (Dialect::from_path(path), last) {
            (Dialect::Anthropic, "count_tokens") => &Self {
                name: "count_tokens",
                provider: Some("anthropic"),
            },
            (Dialect::Anthropic, _) => &Self {
                name: "chat",
                provider: Some("anthropic"),
            },
            (Dialect::OpenAiChat | Dialect::OpenAiResponses, _) => &Self {
                name: "chat",
                provider: Some("openai"),
            },
            (_, "embeddings") => &Self {
                name: "embeddings",
                provider: Some("openai"),
            },
            (_, "completions") => &Self {
                name: "text_completion",
                provider: Some("openai"),
            },
            (_, "generations" | "edits" | "variations") if is_image => &Self {
                name: "generate_content",
                provider: Some("openai"),
            },
            _ => match dialect {
                Dialect::Any => &Self::UNKNOWN,
                Dialect::Custom(_) => &Self {
                    name: "chat",
                    provider: None,
                },
                Dialect::Anthropic => &Self {
                    name: "chat",
                    provider: Some("anthropic"),
                },
                Dialect::OpenAiChat | Dialect::OpenAiResponses => &Self {
                    name: "chat",
                    provider: Some("openai"),
                },
            },
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
