use std::{fmt, sync::Arc, time::SystemTime};

use http::{HeaderMap, StatusCode};

use super::{
    class::{self, FailureClass},
    error_body,
    failure::Failure,
    head::FailureHead,
    stop,
};
use crate::llm::dialect::StreamFailure;

/// A longer body is not an error's.
const MAX_BODY: usize = 64 * 1024;

/// How answers are judged: by a program's own rules first, then by what is known
/// of the providers.
///
/// # Examples
///
/// A gateway of one's own that reports under 200 what went wrong:
///
/// ```
/// use std::time::SystemTime;
/// use http::{HeaderMap, StatusCode};
/// use tower_agent::llm::failure::{FailureClass, Classifier};
///
/// let judgement = Classifier::new().rule(|answered| {
///     let is_busy = answered.headers.get("x-gateway")? == "busy";
///     is_busy.then_some(FailureClass::Overloaded)
/// });
///
/// let mut headers = HeaderMap::new();
/// let now = SystemTime::UNIX_EPOCH;
/// assert_eq!(judgement.of_answer(StatusCode::OK, &headers, b"{}", now), None);
///
/// headers.insert("x-gateway", "busy".parse().unwrap());
/// let failure = judgement.of_answer(StatusCode::OK, &headers, b"{}", now).unwrap();
/// assert_eq!(failure.class, FailureClass::Overloaded);
/// ```
#[derive(Clone, Default)]
pub struct Classifier {
    // Shared: it is cloned with each call of a layer.
    rules: Option<Arc<Vec<Arc<Rule>>>>,
}

type Rule = dyn Fn(&Answered<'_>) -> Option<FailureClass> + Send + Sync;

/// What a rule of a [`Classifier`] sees: an answer, or the event by which a
/// stream reported that it failed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Answered<'a> {
    /// The answer's status, also a good one; `None` for an event of a stream.
    pub status: Option<StatusCode>,
    /// The answer's; empty for an event of a stream.
    pub headers: &'a HeaderMap,
    /// The body or the event's data, as far as it can be read: empty if it is
    /// compressed, longer than 64 KiB, or an event longer than 16 KiB.
    pub body: &'a [u8],
    /// The error that was found in the body; its texts are empty if there is
    /// none.
    pub error: &'a StreamFailure,
}

impl Classifier {
    /// Judges by what is known of the providers.
    #[must_use]
    pub const fn new() -> Self {
        Self { rules: None }
    }

    /// Adds a rule, which is asked after those that were added before it.
    ///
    /// A rule that answers `None` leaves the judgement to the next. It is asked
    /// about every answer that is no redirect, so it should be quick where the
    /// status is good; the class that it answers is final.
    #[must_use]
    pub fn rule<F>(mut self, rule: F) -> Self
    where
        F: Fn(&Answered<'_>) -> Option<FailureClass> + Send + Sync + 'static,
    {
        let rules = self.rules.get_or_insert_default();
        Arc::make_mut(rules).push(Arc::new(rule));
        self
    }

    /// Judges an answer as [`Failure::of_answer`] does.
    #[must_use]
    pub fn of_answer(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Option<Failure> {
        let is_failure = class::is_failure_status(status);
        if !is_failure && !status.is_success() {
            return None;
        }
        let whole = body;
        let body = if error_body::is_plain(headers) {
            body
        } else {
            b""
        };
        let is_page = error_body::is_page(headers, body);
        let body = if body.len() > MAX_BODY { b"" } else { body };
        let is_broken = !is_failure && error_body::is_broken_json(headers, whole);
        let is_error = is_failure || is_page || is_broken || error_body::is_error(body);
        let error = match is_error && !is_page {
            true => StreamFailure::read(body),
            false => StreamFailure::default(),
        };
        let ruled = self.ask(&Answered {
            status: Some(status),
            headers,
            body,
            error: &error,
        });
        // A page is none of its own documents, however it is announced.
        let is_cut = is_broken && !is_page;
        let ruled = match is_error {
            true => ruled.or(is_cut.then_some(FailureClass::Transport)),
            false => Some(ruled.or_else(|| stop::of_answer(body))?),
        };
        let mut head = FailureHead::read(headers, now);
        head.status = is_failure.then_some(status);
        head.is_page = is_page;
        Some(head.judge(&error, body, ruled))
    }

    /// Judges the event by which a stream reported that it failed.
    #[must_use]
    pub fn of_stream(&self, failure: &StreamFailure) -> Failure {
        let ruled = self.ask(&Answered {
            status: None,
            headers: &HeaderMap::new(),
            body: &failure.body,
            error: failure,
        });
        FailureHead::default().judge(failure, &failure.body, ruled)
    }

    fn ask(&self, answered: &Answered<'_>) -> Option<FailureClass> {
        self.rules().find_map(|rule| rule(answered))
    }

    fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.iter().flat_map(|rules| rules.iter())
    }
}

impl fmt::Debug for Classifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judgement")
            .field("rules", &self.rules().count())
            .finish()
    }
}
