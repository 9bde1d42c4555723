//! Classes of failures, and what each allows: the same candidate, another, a cooldown.

use std::fmt;

use http::StatusCode;

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
        is_failure_status(status)
            .then(|| class_of_status(status).unwrap_or_else(|| fallback_class(Some(status))))
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

/// Whether the same candidate is worth another try.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetrySame {
    /// It would fail the same way again.
    No,
    /// One more, whatever the budget would allow.
    Once,
    /// Yes, after the delay that it asked for.
    Yes,
    /// Yes, but after a longer wait, and of one that is overloaded only where
    /// there is no other candidate.
    Slowly,
}

/// Which other candidate is worth a try.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TryOther {
    /// None.
    No,
    /// Any.
    Yes,
    /// One that is reached with another credential.
    Credential,
    /// One of another provider.
    Provider,
    /// One with a larger context window.
    LargerWindow,
    /// Any, if the program allows it for requests that are themselves at fault.
    IfAllowed,
}

/// How long a candidate is left alone after the failure.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cooldown {
    /// Not at all: the failure says nothing about the next request.
    No,
    /// For seconds to minutes.
    Short,
    /// For ten minutes at first, up to a day: a person has to mend it.
    Long,
    /// For hours, up to a day: until the quota is filled up.
    Quota,
}

impl FailureClass {
    /// Whether the same candidate is worth another try.
    ///
    /// An upstream's `x-should-retry` may forbid it:
    /// [`Failure::is_worth_repeating`](crate::llm::failure::Failure::is_worth_repeating).
    #[must_use]
    pub const fn same(self) -> RetrySame {
        match self {
            Self::Silence => RetrySame::Once,
            Self::Overloaded | Self::NotReady => RetrySame::Slowly,
            Self::Transport
            | Self::RequestTimeout
            | Self::Conflict
            | Self::RateLimit
            | Self::Server
            | Self::ModelFault => RetrySame::Yes,
            Self::Deadline
            | Self::Certificate
            | Self::Redirect
            | Self::RequestLimit
            | Self::Quota
            | Self::Auth
            | Self::ModelGone
            | Self::Region
            | Self::ContextOverflow
            | Self::TooLarge
            | Self::ContentFilter
            | Self::Caller => RetrySame::No,
        }
    }

    /// Which other candidate is worth a try, as long as nothing was committed.
    #[must_use]
    pub const fn other(self) -> TryOther {
        match self {
            Self::Conflict => TryOther::No,
            Self::Silence
            | Self::Deadline
            | Self::Transport
            | Self::Certificate
            | Self::Redirect
            | Self::RequestTimeout
            | Self::RateLimit
            | Self::RequestLimit
            | Self::Overloaded
            | Self::NotReady
            | Self::Server
            | Self::ModelFault
            | Self::ModelGone => TryOther::Yes,
            Self::Quota | Self::Auth => TryOther::Credential,
            Self::Region => TryOther::Provider,
            Self::ContextOverflow => TryOther::LargerWindow,
            Self::TooLarge | Self::ContentFilter | Self::Caller => TryOther::IfAllowed,
        }
    }

    /// How long the candidate is left alone.
    #[must_use]
    pub const fn cool(self) -> Cooldown {
        match self {
            Self::Silence
            | Self::Transport
            | Self::RateLimit
            | Self::Overloaded
            | Self::NotReady
            | Self::Server => Cooldown::Short,
            Self::Certificate | Self::Redirect | Self::Auth | Self::ModelGone | Self::Region => {
                Cooldown::Long
            }
            Self::Quota => Cooldown::Quota,
            Self::Deadline
            | Self::RequestTimeout
            | Self::Conflict
            | Self::RequestLimit
            | Self::ModelFault
            | Self::ContextOverflow
            | Self::TooLarge
            | Self::ContentFilter
            | Self::Caller => Cooldown::No,
        }
    }
}

/// Whether an answer with this status is a failure.
pub(super) fn is_failure_status(status: StatusCode) -> bool {
    status.as_u16() >= 400
}

/// The class that a status tells by itself.
///
/// A plain 400 or 404 tells nothing: an exact name may still say more.
pub(super) fn class_of_status(status: StatusCode) -> Option<FailureClass> {
    match status.as_u16() {
        401 | 403 => Some(FailureClass::Auth),
        402 => Some(FailureClass::Quota),
        408 => Some(FailureClass::RequestTimeout),
        409 => Some(FailureClass::Conflict),
        410 => Some(FailureClass::ModelGone),
        413 => Some(FailureClass::TooLarge),
        424 => Some(FailureClass::ModelFault),
        429 => Some(FailureClass::RateLimit),
        // We are still here, so it was not us who went away.
        499 => Some(FailureClass::Server),
        529 => Some(FailureClass::Overloaded),
        500.. => Some(FailureClass::Server),
        _ => None,
    }
}

/// The class of a failure about which nothing else is known.
pub(super) fn fallback_class(status: Option<StatusCode>) -> FailureClass {
    match status {
        Some(status) if status.is_client_error() => FailureClass::Caller,
        // An answer that was begun was asked for in a way that could be served.
        _ => FailureClass::Server,
    }
}
