//! The simulated errors, in the words of the real APIs.

use super::behavior::FailureMode;

/// The content of an error, in the words of one dialect.
#[derive(Debug)]
pub(super) struct ErrorContent {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) code: Option<&'static str>,
    pub(super) message: String,
}

impl ErrorContent {
    pub(super) fn new(
        status: u16,
        kind: &'static str,
        code: Option<&'static str>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            status,
            kind,
            code,
            message: message.into(),
        }
    }
}

impl FailureMode {
    pub(super) fn content_as_anthropic(self, model: &str) -> ErrorContent {
        match self {
            Self::RateLimited { .. } => ErrorContent::new(
                429,
                "rate_limit_error",
                None,
                format!(
                    "This request would exceed the rate limit of {model}. Please try again later."
                ),
            ),
            Self::Overloaded | Self::OverloadedStream => {
                ErrorContent::new(529, "overloaded_error", None, "Overloaded")
            }
            Self::Server => ErrorContent::new(500, "api_error", None, "Internal server error"),
            Self::Request => ErrorContent::new(
                400,
                "invalid_request_error",
                None,
                "messages.0.content: Input should be a valid list",
            ),
        }
    }

    pub(super) fn content_as_openai(self, model: &str) -> ErrorContent {
        match self {
            Self::RateLimited { retry_after } => ErrorContent::new(
                429,
                "requests",
                Some("rate_limit_exceeded"),
                format!(
                    "Rate limit reached for {model} on requests per min (RPM): Limit 3, Used 3. \
                     Please try again in {retry_after}s."
                ),
            ),
            Self::Overloaded | Self::OverloadedStream => ErrorContent::new(
                if self == Self::Overloaded { 503 } else { 529 },
                "service_unavailable_error",
                Some("server_is_overloaded"),
                "Our servers are currently overloaded. Please try again later.",
            ),
            Self::Server => ErrorContent::new(
                500,
                "server_error",
                None,
                "The server had an error while processing your request. Sorry about that!",
            ),
            Self::Request => ErrorContent::new(
                400,
                "invalid_request_error",
                Some("invalid_value"),
                "Invalid value for 'content': expected a string, got null.",
            ),
        }
    }
}
