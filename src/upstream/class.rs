use std::fmt;

use http::StatusCode;

use crate::sse::StreamFailure;

/// Why an upstream's answer is a failure.
///
/// Judged from the status alone for now; an error frame inside a 200 stream is
/// judged by its `type`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// The connection could not be made, was reset, or the body was cut.
    Transport,
    /// 408 or 409: the upstream asks for the same again.
    RequestTimeout,
    /// 429.
    RateLimit,
    /// 503 or 529, `overloaded_error`.
    Overloaded,
    /// Any other 5xx, `api_error`, `server_error`, and what is not known.
    Server,
    /// 402, `insufficient_quota`, `billing_error`.
    Quota,
    /// 401 or 403, `authentication_error`, `permission_error`.
    Auth,
    /// 410, `model_not_found`.
    ModelGone,
    /// `context_length_exceeded`.
    ContextOverflow,
    /// 413, `request_too_large`.
    TooLarge,
    /// `content_filter`.
    ContentFilter,
    /// Any other 4xx, `invalid_request_error`.
    Caller,
}

impl FailureClass {
    /// The class of an answer with this status; `None` if it is no failure.
    #[must_use]
    pub fn from_status(status: StatusCode) -> Option<Self> {
        match status.as_u16() {
            402 => Some(Self::Quota),
            401 | 403 => Some(Self::Auth),
            408 | 409 => Some(Self::RequestTimeout),
            410 => Some(Self::ModelGone),
            413 => Some(Self::TooLarge),
            429 => Some(Self::RateLimit),
            503 | 529 => Some(Self::Overloaded),
            400..=499 => Some(Self::Caller),
            500.. => Some(Self::Server),
            _ => None,
        }
    }

    /// The class of an error that an upstream names by `type` or `code`.
    #[must_use]
    pub fn from_error_type(name: &str) -> Self {
        match name {
            "rate_limit_error" | "rate_limit_exceeded" => Self::RateLimit,
            "overloaded_error" | "server_is_overloaded" | "slow_down" => Self::Overloaded,
            "insufficient_quota" | "billing_error" => Self::Quota,
            "authentication_error" | "invalid_api_key" | "permission_error" => Self::Auth,
            "model_not_found" | "not_found_error" => Self::ModelGone,
            "context_length_exceeded" => Self::ContextOverflow,
            "request_too_large" => Self::TooLarge,
            "content_filter" | "content_policy_violation" => Self::ContentFilter,
            "invalid_request_error" => Self::Caller,
            _ => Self::Server,
        }
    }

    /// The class of an error event inside a stream.
    #[must_use]
    pub fn from_stream(failure: &StreamFailure) -> Self {
        // Where the type says no more than "server error", a code may.
        match Self::from_error_type(&failure.kind) {
            Self::Server => Self::from_error_type(&failure.code),
            class => class,
        }
    }

    /// The class in one lower-case word, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transport => "transport",
            Self::RequestTimeout => "request_timeout",
            Self::RateLimit => "rate_limit",
            Self::Overloaded => "overloaded",
            Self::Server => "server",
            Self::Quota => "quota",
            Self::Auth => "auth",
            Self::ModelGone => "model_gone",
            Self::ContextOverflow => "context_overflow",
            Self::TooLarge => "too_large",
            Self::ContentFilter => "content_filter",
            Self::Caller => "caller",
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
