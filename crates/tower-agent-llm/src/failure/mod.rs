//! Classifies the failures of upstreams.
//!
//! Whether a retry makes sense depends on the failure, not on the layer that notices it. An
//! upstream reports a failure in many ways: by a status, by a body of one of several shapes, by
//! an event inside a stream that began with 200, or by a broken connection. A [`Failure`] is
//! the classification of any of them: its [`FailureClass`] decides about retries. Adapters wrap
//! a client library's opaque errors in a [`TransportError`], so that no layer has to guess.
//!
//! # What counts
//!
//! A failure is judged by its cause, from all that the answer says: every name at each place of an
//! error (`type`, `code`, `status`, `reason`, `errors[]`, `details[]`, `base_resp`), also of an error
//! inside of its message, the phrases of its messages, the times, and last the status.
//!
//! 1. The rules of a [`Classifier`], then the terminal reason in `x-terminal-reason`.
//! 2. The program's own [`Signal`]s, in their order.
//! 3. Names that say the whole cause, such as `insufficient_quota`, in this order: quota, rate limit,
//!    overload, an upstream that is not ready, timeout, model fault, region, credential, model,
//!    context, size, filter, session.
//! 4. The fields and phrases that providers use instead of a name.
//! 5. Names with several causes, such as `RESOURCE_EXHAUSTED` and `rate_limit_error`.
//! 6. The status, and names such as `invalid_request_error` that only say which side is at fault.
//!
//! A rate limit whose stated time is more than an hour, or a point in time, is a quota. Beside the
//! name of a quota a delay of up to a minute says nothing, and neither does the renewal of a limit
//! beside a failure that is none of a limit. [`Failure::signal`] names the signal that decided.
//! `docs/providers.md` lists those that this crate knows.
//!
//! # What it says about others
//!
//! The class is of this call alone. What rests a candidate for other calls reads only what the
//! upstream itself can have written, because an upstream may quote a caller:
//! `tower_agent::Cooldowns` has the rule.
//!
//! An answer under a good status fails if it is an error object or an HTML page. So does one with
//! stop reasons that are all failures, such as a refusal, or a `network_error`, which rests nobody.
//! A body that is announced as JSON counts as cut if it does not begin and end as JSON, or leaves a
//! bracket or a string open. An answer that only quotes an error is healthy.
//!
//! # Examples
//!
//! ```
//! use std::time::{Duration, SystemTime};
//! use http::{HeaderMap, HeaderValue, StatusCode};
//! use tower_agent_llm::failure::{Cooldown, Failure, FailureClass, TryOther, RetrySame};
//!
//! let now = SystemTime::UNIX_EPOCH;
//! let mut headers = HeaderMap::new();
//! headers.insert("retry-after", HeaderValue::from_static("1.5"));
//!
//! let body = br#"{"error":{"message":"Rate limit reached","type":"tokens","code":"rate_limit_exceeded"}}"#;
//! let failure = Failure::of_answer(StatusCode::TOO_MANY_REQUESTS, &headers, body, now).unwrap();
//! assert_eq!(failure.class, FailureClass::RateLimit);
//! assert_eq!(failure.retry_after, Some(Duration::from_millis(1500)));
//! assert!(failure.is_worth_repeating());
//!
//! // The same status, but to wait does not renew a used-up quota.
//! let body = br#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#;
//! let failure = Failure::of_answer(StatusCode::TOO_MANY_REQUESTS, &headers, body, now).unwrap();
//! assert_eq!(failure.class, FailureClass::Quota);
//! assert_eq!(failure.class.retry(), RetrySame::No);
//! assert_eq!(failure.class.fallback(), TryOther::Credential);
//! assert_eq!(failure.class.cooldown(), Cooldown::Quota);
//!
//! let body = br#"{"choices":[{"message":{"content":"42"}}]}"#;
//! assert_eq!(Failure::of_answer(StatusCode::OK, &HeaderMap::new(), body, now), None);
//! ```

pub(crate) mod class;
pub(crate) mod classifier;
pub(crate) mod empty_answer;
pub(crate) mod error_body;
pub(crate) mod error_status;
pub(crate) mod errors;
pub(crate) mod evidence;
pub(crate) mod instants;
pub(crate) mod judgment;
pub(crate) mod prose;
pub(crate) mod retry_after;
pub(crate) mod signals;
pub(crate) mod stop_reasons;
#[cfg(test)]
mod tests;
pub(crate) mod times;

pub use self::{
    class::{Concern, Cooldown, FailureClass, RetrySame, TryOther},
    classifier::{Answered, Classifier, Failure},
    errors::{
        ActiveCooldown, AllCandidatesCoolingDown, IncompleteJson, Redirected, TransportError,
    },
    signals::{Signal, SignalPlace, SignalUntil},
};
