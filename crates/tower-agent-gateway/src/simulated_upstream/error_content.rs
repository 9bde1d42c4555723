//! The simulated errors, in the words of the real APIs.

use super::behaviour::FailureMode;

/// The content of an error, in the words of one dialect.
#[derive(Debug)]
pub(super) struct ErrorContent {
    pub(super) status: u16,
    pub(super) kind: &'static str,
    pub(super) code: Option<&'static str>,
    pub(super) message: String,
}

impl FailureMode {
    pub(super) fn content_as_anthropic(self, model: &str) -> ErrorContent {
        let (status, kind, message) = match self {
            Self::RateLimited { .. } => (
                429,
                "rate_limit_error",
                format!(
                    "This request would exceed the rate limit of {model}. Please try again later."
                ),
            ),
            Self::Overloaded | Self::OverloadedStream => {
                (529, "overloaded_error", "Overloaded".to_owned())
            }
            Self::Server => (500, "api_error", "Internal server error".to_owned()),
            Self::Request => (
                400,
                "invalid_request_error",
                "messages.0.content: Input should be a valid list".to_owned(),
            ),
        };
        ErrorContent {
            status,
            kind,
            code: None,
            message,
        }
    }

    pub(super) fn content_as_openai(self, model: &str) -> ErrorContent {
        let (status, kind, code, message) = match self {
            Self::RateLimited { retry_after } => (
                429,
                "requests",
                Some("rate_limit_exceeded"),
                format!(
                    "Rate limit reached for {model} on requests per min (RPM): Limit 3, Used 3. \
                     Please try again in {retry_after}s."
                ),
            ),
            Self::Overloaded | Self::OverloadedStream => (
                if self == Self::Overloaded { 503 } else { 529 },
                "service_unavailable_error",
                Some("server_is_overloaded"),
                "Our servers are currently overloaded. Please try again later.".to_owned(),
            ),
            Self::Server => (
                500,
                "server_error",
                None,
                "The server had an error while processing your request. Sorry about that!"
                    .to_owned(),
            ),
            Self::Request => (
                400,
                "invalid_request_error",
                Some("invalid_value"),
                "Invalid value for 'content': expected a string, got null.".to_owned(),
            ),
        };
        ErrorContent {
            status,
            kind,
            code,
            message,
        }
    }
}
