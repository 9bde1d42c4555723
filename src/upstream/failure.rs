use std::{
    error::Error,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue, StatusCode};

use super::{
    FailureClass, Same, cause,
    judge::{Said, judge},
    retry_after, status, unary,
};
use crate::sse::StreamFailure;

/// One judged failure of an upstream.
///
/// It says nothing about the run: whoever retries looks first whether its own
/// node is over.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What kind of failure it is.
    pub class: FailureClass,
    /// The answer's status; for an error under 200, the one that it names as
    /// its code. `None` if there is neither.
    pub status: Option<StatusCode>,
    /// The upstream's own words, at most 1 KiB; empty if it had none.
    pub message: String,
    /// How long the upstream asks to be left alone, at most 30 days.
    pub retry_after: Option<Duration>,
    /// The upstream's `x-should-retry`.
    pub should_retry: Option<bool>,
}

impl Failure {
    /// A failure of which the upstream itself said nothing.
    #[must_use]
    pub const fn new(class: FailureClass) -> Self {
        Self {
            class,
            status: None,
            message: String::new(),
            retry_after: None,
            should_retry: None,
        }
    }

    /// Judges an answer; `None` if it is healthy.
    ///
    /// `body` is the whole body of an error, or of an answer that is no event
    /// stream: some upstreams report an error under 200. Where it was not read,
    /// or is compressed, the head alone decides. `now` is the wall clock's, for
    /// a `retry-after` that names a date.
    ///
    /// An `x-terminal-reason` is taken for that of a run which is not ours.
    #[must_use]
    pub fn of_answer(
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Option<Self> {
        let body = if unary::is_plain(headers) { body } else { b"" };
        let is_failure = status::is_failure(status);
        if !is_failure && !status.is_success() {
            return None;
        }
        let is_page = unary::is_page(headers, body);
        if !is_failure && !is_page && !unary::is_error(body) {
            return None;
        }
        let said = match is_page {
            true => StreamFailure::default(),
            false => StreamFailure::read(body),
        };
        let head = Head {
            reason: text(headers, "x-terminal-reason"),
            status: is_failure.then_some(status),
            retry_after: retry_after::read(headers, now),
            should_retry: match text(headers, "x-should-retry") {
                "true" => Some(true),
                "false" => Some(false),
                _ => None,
            },
        };
        Some(head.judge(&said))
    }

    /// Judges the event by which a stream reported that it failed.
    #[must_use]
    pub fn of_stream(failure: &StreamFailure) -> Self {
        Head::default().judge(failure)
    }

    /// Judges an error that came in place of an answer, or of the rest of one.
    ///
    /// Its message stays empty: an error's text is not the upstream's, and may
    /// name hosts that are nobody's business.
    #[must_use]
    pub fn of_error(error: &(dyn Error + 'static)) -> Self {
        Self::new(cause::class_of(error))
    }

    /// Whether the same candidate may be asked again, as far as the failure is
    /// concerned; budgets come on top.
    ///
    /// The upstream may forbid what the class allows, never allow what it forbids.
    #[must_use]
    pub fn is_worth_repeating(&self) -> bool {
        self.class.same() != Same::No && self.should_retry != Some(false)
    }
}

/// What the head of an answer adds to an error's own words.
#[derive(Default)]
struct Head<'a> {
    reason: &'a str,
    status: Option<StatusCode>,
    retry_after: Option<Duration>,
    should_retry: Option<bool>,
}

impl Head<'_> {
    fn judge(self, failure: &StreamFailure) -> Failure {
        let status = self.status.or_else(|| numeric(&failure.code));
        let message = failure.message.trim();
        let class = judge(Said {
            reason: self.reason,
            status,
            kind: &failure.kind,
            code: &failure.code,
            message,
            has_delay: self.retry_after.is_some(),
        });
        Failure {
            class,
            status,
            message: message.to_owned(),
            retry_after: self.retry_after,
            should_retry: self.should_retry,
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    let value = headers.get(name).map(HeaderValue::to_str);
    value.and_then(Result::ok).unwrap_or_default()
}

/// A code that is a status. Some providers number their errors otherwise.
fn numeric(code: &str) -> Option<StatusCode> {
    let status: StatusCode = code.parse().ok()?;
    (status.is_client_error() || status.is_server_error()).then_some(status)
}
