use std::fmt;

use http::StatusCode;

use super::status;

/// Why an upstream's answer is a failure.
///
/// What follows from it is told by [`same`](Self::same), [`other`](Self::other)
/// and [`cool`](Self::cool).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// Our step window of a stream passed before its first content.
    Silence,
    /// Another deadline of ours passed: a ceiling, a share of the time left.
    Deadline,
    /// The connection could not be made, was reset, or the body was cut, as half a
    /// JSON document under a good status is.
    Transport,
    /// The upstream's certificate could not be verified.
    Certificate,
    /// A 1xx or 3xx of a candidate with a base URL: it is somewhere else, and a
    /// person has to say where. Nothing is sent there.
    Redirect,
    /// 408, `ModelTimeoutException`.
    RequestTimeout,
    /// 409.
    Conflict,
    /// 429, `rate_limit_error`, `rate_limit_exceeded`, `RESOURCE_EXHAUSTED`.
    RateLimit,
    /// A rate limit that this request exceeds by itself, however long it waits.
    RequestLimit,
    /// 529, `overloaded_error`, `server_is_overloaded`, `slow_down`, `UNAVAILABLE`.
    Overloaded,
    /// The upstream is still starting, or access to it is still being set up:
    /// `ModelNotReadyException`, llama.cpp's "Loading model".
    NotReady,
    /// Any other 5xx, `api_error`, `server_error`, an HTML page in place of an
    /// answer, and what a stream says that is not known.
    Server,
    /// 424, `ModelStreamErrorException`: the model broke down while it answered.
    ModelFault,
    /// 402, `insufficient_quota`, `billing_error`, a quota per day: nothing left
    /// to pay with.
    Quota,
    /// 401, a bare 403, `authentication_error`, `invalid_api_key`.
    Auth,
    /// 410, `model_not_found`, `permission_error`: gone, or not for this credential.
    ModelGone,
    /// `unsupported_country_region_territory`, or a firewall's page under 403: not
    /// from where we are.
    Region,
    /// `context_length_exceeded`: more than the model can read.
    ContextOverflow,
    /// 413, `request_too_large`: more bytes than the upstream takes.
    TooLarge,
    /// `content_filter`, `content_policy_violation`, `invalid_prompt`, or a model
    /// that stopped with `refusal`.
    ContentFilter,
    /// Any other 4xx, `invalid_request_error`.
    Caller,
}

impl FailureClass {
    /// The class of an answer of which nothing but the status is known; `None`
    /// if it is no failure. A redirect is none by itself: whether it is
    /// [`Redirect`](Self::Redirect) depends on the candidate that it comes from.
    ///
    /// [`Failure::of_answer`](crate::llm::failure::Failure::of_answer) sees more.
    #[must_use]
    pub fn from_status(status: StatusCode) -> Option<Self> {
        status::is_failure(status)
            .then(|| status::telling(status).unwrap_or_else(|| status::otherwise(Some(status))))
    }

    /// The class in one lower-case word, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Silence => "silence",
            Self::Deadline => "deadline",
            Self::Transport => "transport",
            Self::Certificate => "certificate",
            Self::Redirect => "redirect",
            Self::RequestTimeout => "request_timeout",
            Self::Conflict => "conflict",
            Self::RateLimit => "rate_limit",
            Self::RequestLimit => "request_limit",
            Self::Overloaded => "overloaded",
            Self::NotReady => "not_ready",
            Self::Server => "server",
            Self::ModelFault => "model_fault",
            Self::Quota => "quota",
            Self::Auth => "auth",
            Self::ModelGone => "model_gone",
            Self::Region => "region",
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
