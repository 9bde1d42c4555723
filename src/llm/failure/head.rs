use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode};

use super::{
    class::{FailureClass, RetrySame},
    delay,
    details::Details,
    failure::Failure,
    retry_after,
    rules::{Said, judge},
};
use crate::llm::dialect::StreamFailure;

/// What the head of an answer adds to an error's own words.
#[derive(Default)]
pub(super) struct FailureHead<'a> {
    reason: &'a str,
    kind: &'a str,
    /// That of an error.
    pub(super) status: Option<StatusCode>,
    /// The body is a page for people.
    pub(super) is_page: bool,
    retry_after: Option<Duration>,
    should_retry: Option<bool>,
}

impl<'a> FailureHead<'a> {
    /// What the headers say.
    pub(super) fn read(headers: &'a HeaderMap, now: SystemTime) -> Self {
        Self {
            reason: text(headers, "x-terminal-reason"),
            kind: text(headers, "x-amzn-errortype"),
            retry_after: retry_after::read(headers, now),
            should_retry: match text(headers, "x-should-retry") {
                "true" => Some(true),
                "false" => Some(false),
                _ => None,
            },
            ..Self::default()
        }
    }

    /// The judgement of the `error` that `body` holds; `ruled` if there is a rule for it.
    pub(super) fn judge(
        self,
        error: &StreamFailure,
        body: &[u8],
        ruled: Option<FailureClass>,
    ) -> Failure {
        let status = self.status.or_else(|| numeric(&error.code));
        let message = error.message.trim();
        let details = Details::read(body);
        let class = ruled.unwrap_or_else(|| {
            judge(Said {
                reason: self.reason,
                status,
                names: &[self.kind, &error.kind, &error.code, &details.reason],
                message,
                details: &details,
                has_delay: self.retry_after.is_some(),
                is_page: self.is_page,
            })
        });
        // Google names half a minute also for a quota that is used up for today.
        let asked = || match class.same() {
            RetrySame::No => None,
            _ => details.retry_delay.or_else(|| delay::in_prose(message)),
        };
        Failure {
            class,
            status,
            message: message.to_owned(),
            retry_after: self.retry_after.or_else(asked).map(retry_after::capped),
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
