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

    /// The operation by the last segments of a request's path, and by the dialect of its stream.
    pub(crate) fn of(path: &str, dialect: Dialect) -> Self {
        let path = path.strip_suffix('/').unwrap_or(path);
        let (parents, last) = path.rsplit_once('/').unwrap_or(("", path));
        let (name, provider) = match (dialect, last) {
            (Dialect::Anthropic, "count_tokens") => ("count_tokens", "anthropic"),
            (Dialect::Anthropic, _) => ("chat", "anthropic"),
            (Dialect::OpenAiChat | Dialect::OpenAiResponses, _) => ("chat", "openai"),
            (_, "embeddings") => ("embeddings", "openai"),
            (_, "completions") => ("text_completion", "openai"),
            (_, "generations" | "edits" | "variations") if parents.ends_with("images") => {
                ("generate_content", "openai")
            }
            (Dialect::Custom(_), _) => {
                return Self {
                    name: "chat",
                    provider: None,
                };
            }
            (Dialect::Any, _) => return Self::UNKNOWN,
        };
        let provider = Some(provider);
        Self { name, provider }
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
            assert_eq!(found, GenAiOperation { name, provider }, "{path}");
        }
    }
}
