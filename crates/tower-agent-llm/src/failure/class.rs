//! Classes of failures, with the retries and the cooldown that each allows.

use std::fmt;

use http::StatusCode;

/// The class of an upstream's failure.
///
/// [`retry`](Self::retry), [`fallback`](Self::fallback) and [`cooldown`](Self::cooldown) say which
/// retries and which cooldown the class allows.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureClass {
    /// The step window of this process passed: the upstream made no progress for too long.
    ///
    /// If the request was for a whole answer, the upstream may have been at work: then the failure
    /// allows no repeat, and no cooldown.
    StepTimeout,
    /// This process ended the attempt because its stream was slower than a floor on its speed.
    Slow,
    /// This process ended the attempt, but neither for its step window nor for its speed. The cause
    /// is, for example, a ceiling or a share of the time left.
    Deadline,
    /// The connection failed or was reset, or the body of the answer was cut.
    ///
    /// Half a JSON document under a good status is a cut body.
    Transport,
    /// The upstream's certificate could not be verified.
    Certificate,
    /// A candidate with a base URL answered 1xx or 3xx.
    ///
    /// The service has moved or wants another protocol, and a person has to configure its new
    /// address. The request is not sent there.
    Redirect,
    /// The upstream timed out: 408, `ModelTimeoutException`.
    RequestTimeout,
    /// The upstream reports a conflict with another request: 409.
    Conflict,
    /// A rate limit is reached; the status is mostly 429.
    ///
    /// Names such as `rate_limit_error`, `rate_limit_exceeded` and `RESOURCE_EXHAUSTED` stand for
    /// it under any status. An error with such a status or name may still be of another class. With
    /// `insufficient_quota` it is a [`Quota`](Self::Quota), and a request that is too large for the
    /// limit is a [`RequestLimit`](Self::RequestLimit).
    RateLimit,
    /// A rate limit that this request exceeds by itself, however long the caller waits.
    RequestLimit,
    /// The upstream is overloaded: 529, `overloaded_error`, `server_is_overloaded`,
    /// `slow_down`, `UNAVAILABLE`.
    Overloaded,
    /// The upstream is still starting, or access to it is being set up.
    ///
    /// Upstreams report this state as `ModelNotReadyException`, or as llama.cpp's "Loading
    /// model".
    NotReady,
    /// The upstream failed in itself: any other 5xx, `api_error`, `server_error`.
    ///
    /// The class also covers 499, an HTML page under a good status, and an error event of unknown
    /// type in a stream.
    Server,
    /// The model failed during its answer: 424, `ModelStreamErrorException`.
    ModelFault,
    /// No credit is left: 402, `insufficient_quota`, `billing_error`, or a used-up daily quota.
    ///
    /// A 402 without a known error name is a [`RateLimit`](Self::RateLimit) if its headers ask for
    /// a delay, or its message for one of less than an hour.
    Quota,
    /// The credential is not accepted: 401, a bare 403, `authentication_error`,
    /// `invalid_api_key`.
    Auth,
    /// The model is gone, or not for this credential: 410, `model_not_found`,
    /// `permission_error`.
    ModelGone,
    /// The upstream allows no access from this location:
    /// `unsupported_country_region_territory`, or a firewall's page under 403.
    Region,
    /// The prompt is longer than the model can read: the upstream's code is
    /// `context_length_exceeded`, or its message says so.
    ContextOverflow,
    /// The session or the earlier answer that the request goes on from is gone: 410 or 404
    /// "session not found", `previous_response_not_found`.
    ///
    /// The request is at fault: the caller has to begin anew.
    SessionExpired,
    /// The upstream does not offer the operation: 501, LM Studio's "Unexpected endpoint".
    NotOffered,
    /// The request has more bytes than the upstream accepts: 413, `request_too_large`.
    TooLarge,
    /// The upstream refused the content: `content_filter`, `content_policy_violation`,
    /// `invalid_prompt`, or a model that stopped with `refusal`.
    ContentFilter,
    /// The request is at fault in another way: any other 4xx, `invalid_request_error`.
    Caller,
}

impl FailureClass {
    /// Classifies an answer by its status alone; `None` if the status is below 400.
    ///
    /// A redirect is not a failure by itself: whether it is [`Redirect`](Self::Redirect)
    /// depends on the candidate that sent it.
    ///
    /// [`Failure::of_answer`](crate::failure::Failure::of_answer) classifies an
    /// answer by its headers and body as well.
    #[inline]
    #[must_use]
    pub fn from_status(status: StatusCode) -> Option<Self> {
        is_failure_status(status)
            .then(|| class_of_status(status).unwrap_or_else(|| fallback_class(Some(status))))
    }

    /// The name of the class in `snake_case`, for logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.traits().0
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the candidate that failed is itself worth another try.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetrySame {
    /// The candidate is not worth another try.
    No,
    /// The candidate is worth one more attempt, but not a second one, even if the budget allows
    /// it; and only if no other candidate can serve.
    Once,
    /// The candidate is worth another try, after the delay that the upstream asked for, or a
    /// backoff.
    Yes,
    /// The candidate is worth another try, after the delay that the upstream asked for, or a
    /// longer backoff.
    ///
    /// A candidate that fails as [`Overloaded`](FailureClass::Overloaded) is retried only if no
    /// other can serve.
    Slowly,
}

/// The condition under which another candidate is worth a try after a failure.
///
/// Each [`FailureClass`] has one such condition.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TryOther {
    /// No other candidate is worth a try.
    No,
    /// Any other candidate is worth a try.
    Yes,
    /// Another candidate is worth a try if it uses another account.
    ///
    /// By default the upstream, the key and the headers with a credential identify the account. So
    /// the same key at another upstream is another account: see
    /// `Candidate::credential` in `tower-agent`.
    Credential,
    /// Another candidate is worth a try if it is of another provider.
    Provider,
    /// Another candidate is worth a try if its context window is larger.
    LargerWindow,
    /// Another candidate is worth a try if it is of another model. No class has this condition: a
    /// fallback layer that may move on after a refusal makes it of
    /// [`IfAllowed`](Self::IfAllowed).
    OtherModel,
    /// Any other candidate is worth a try, if the program allows it for the failure's class:
    /// the request itself is at fault.
    IfAllowed,
}

/// How long a candidate cools down after its failure.
///
/// A cooldown lasts at least for the delay that the upstream asked for, up to a day.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cooldown {
    /// The candidate does not cool down: the next request may succeed.
    No,
    /// The candidate cools down for seconds to minutes.
    Short,
    /// The candidate cools down for ten minutes at first, up to a day: a person has to
    /// fix the cause.
    Long,
    /// The candidate cools down for hours, up to a day: its quota has to be renewed.
    Quota,
}

/// What a failure concerns: a rest that it begins holds for all calls that share it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Concern {
    /// The failure concerns this request alone, and begins no rest.
    Request,
    /// The failure concerns the operation at this model, on all accounts.
    Model,
    /// The failure concerns the operation at this model, on this account.
    ModelOfAccount,
    /// The failure concerns all models of the account.
    Account,
    /// The failure concerns all models at the host.
    Host,
}

impl Concern {
    /// A number that is larger, the more calls share what the failure concerns.
    pub(super) const fn breadth(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::ModelOfAccount => 1,
            Self::Model => 2,
            Self::Account => 3,
            Self::Host => 4,
        }
    }
}

impl FailureClass {
    /// All classes, in the order of their declaration.
    pub const ALL: [Self; 24] = [
        Self::StepTimeout,
        Self::Slow,
        Self::Deadline,
        Self::Transport,
        Self::Certificate,
        Self::Redirect,
        Self::RequestTimeout,
        Self::Conflict,
        Self::RateLimit,
        Self::RequestLimit,
        Self::Overloaded,
        Self::NotReady,
        Self::Server,
        Self::ModelFault,
        Self::Quota,
        Self::Auth,
        Self::ModelGone,
        Self::Region,
        Self::ContextOverflow,
        Self::SessionExpired,
        Self::NotOffered,
        Self::TooLarge,
        Self::ContentFilter,
        Self::Caller,
    ];

    /// Whether the candidate that failed is itself worth another try.
    ///
    /// An upstream's `x-should-retry` may forbid a retry that the class allows: see
    /// [`Failure::is_worth_repeating`](crate::failure::Failure::is_worth_repeating).
    #[must_use]
    pub const fn retry(self) -> RetrySame {
        self.traits().1
    }

    /// Which other candidate is worth a try after a failure of this class.
    ///
    /// Another candidate is possible only until the failed attempt commits.
    #[must_use]
    pub const fn fallback(self) -> TryOther {
        self.traits().2
    }

    /// How long the candidate cools down after a failure of this class.
    #[must_use]
    pub const fn cooldown(self) -> Cooldown {
        self.traits().3
    }

    /// What a failure of this class concerns, unless a signal says otherwise.
    #[must_use]
    pub const fn concern(self) -> Concern {
        match self {
            Self::RateLimit | Self::ModelGone => Concern::ModelOfAccount,
            Self::Quota | Self::Auth => Concern::Account,
            Self::Certificate | Self::Region => Concern::Host,
            _ => match self.cooldown() {
                Cooldown::No => Concern::Request,
                _ => Concern::Model,
            },
        }
    }

    /// The class with this [name](Self::as_str), if there is one.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == name)
    }

    /// The table of the classes: the name of each, the retries and the cooldown that it
    /// allows.
    #[rustfmt::skip]
    const fn traits(self) -> (&'static str, RetrySame, TryOther, Cooldown) {
        match self {
            Self::StepTimeout => ("step_timeout", RetrySame::Once, TryOther::Yes, Cooldown::Short),
            Self::Slow => ("slow", RetrySame::Yes, TryOther::Yes, Cooldown::Short),
            Self::Deadline => ("deadline", RetrySame::No, TryOther::Yes, Cooldown::No),
            Self::Transport => ("transport", RetrySame::Yes, TryOther::Yes, Cooldown::Short),
            Self::Certificate => ("certificate", RetrySame::No, TryOther::Provider, Cooldown::Long),
            Self::Redirect => ("redirect", RetrySame::No, TryOther::Yes, Cooldown::Long),
            Self::RequestTimeout => ("request_timeout", RetrySame::Yes, TryOther::Yes, Cooldown::No),
            Self::Conflict => ("conflict", RetrySame::Yes, TryOther::No, Cooldown::No),
            Self::RateLimit => ("rate_limit", RetrySame::Yes, TryOther::Yes, Cooldown::Short),
            Self::RequestLimit => ("request_limit", RetrySame::No, TryOther::Yes, Cooldown::No),
            Self::Overloaded => ("overloaded", RetrySame::Slowly, TryOther::Yes, Cooldown::Short),
            Self::NotReady => ("not_ready", RetrySame::Slowly, TryOther::Yes, Cooldown::Short),
            Self::Server => ("server", RetrySame::Yes, TryOther::Yes, Cooldown::Short),
            Self::ModelFault => ("model_fault", RetrySame::Yes, TryOther::Yes, Cooldown::No),
            Self::Quota => ("quota", RetrySame::No, TryOther::Credential, Cooldown::Quota),
            Self::Auth => ("auth", RetrySame::No, TryOther::Credential, Cooldown::Long),
            Self::ModelGone => ("model_gone", RetrySame::No, TryOther::Yes, Cooldown::Long),
            Self::Region => ("region", RetrySame::No, TryOther::Provider, Cooldown::Long),
            Self::ContextOverflow => ("context_overflow", RetrySame::No, TryOther::LargerWindow, Cooldown::No),
            Self::NotOffered => ("not_offered", RetrySame::No, TryOther::Yes, Cooldown::No),
            Self::TooLarge => ("too_large", RetrySame::No, TryOther::IfAllowed, Cooldown::No),
            Self::ContentFilter => ("content_filter", RetrySame::No, TryOther::IfAllowed, Cooldown::No),
            Self::SessionExpired => ("session_expired", RetrySame::No, TryOther::No, Cooldown::No),
            Self::Caller => ("caller", RetrySame::No, TryOther::IfAllowed, Cooldown::No),
        }
    }
}

/// Whether an answer with this status is a failure: 400 or higher.
pub(super) fn is_failure_status(status: StatusCode) -> bool {
    status.as_u16() >= 400
}

/// The failure class that a status determines by itself; `None` if it determines none.
///
/// A 400 or a 404, for example, determines no class: a name in the body may still decide.
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
        // 499 says that the client closed the request. This process has not, so another proxy
        // did.
        499 => Some(FailureClass::Server),
        501 => Some(FailureClass::NotOffered),
        529 => Some(FailureClass::Overloaded),
        500.. => Some(FailureClass::Server),
        _ => None,
    }
}

/// The class of a failure with at most a known status.
pub(super) fn fallback_class(status: Option<StatusCode>) -> FailureClass {
    match status {
        Some(status) if status.is_client_error() => FailureClass::Caller,
        // Without a status the failure came after the head of an answer, so the upstream had
        // accepted the request.
        _ => FailureClass::Server,
    }
}

/// Maps the wire name of a terminal reason to a failure class.
///
/// The name comes from an answer's `x-terminal-reason` or from its error, and mostly stands for the
/// end of a run in another process. The result is `None` for every name that is not listed here,
/// such as `completed`.
///
/// A timeout, a cancellation or a failure there ended only that run, so the class is `Server`,
/// which allows a retry. A limit there would stop the same work again, and a superseded run's
/// work is no longer wanted, so the class is `Caller`.
pub(super) fn of_reason(name: &str) -> Option<FailureClass> {
    match name {
        "step_timeout" | "slow" | "max_turn_time" | "timeout" | "client_disconnect" | "aborted"
        | "shutdown" | "upstream_failed" => Some(FailureClass::Server),
        "superseded"
        | "turn_cap_reached"
        | "token_cap_reached"
        | "retry_budget_exceeded"
        | "per_dispatch_errors_exceeded"
        | "consecutive_errors"
        | "loop_detected"
        | "stuck"
        | "idle_circuit_open" => Some(FailureClass::Caller),
        _ => None,
    }
}
