//! Classifies a failure: the head and the body of an answer, an event of a stream, or an error.

use std::{
    error::Error,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue, StatusCode};

use super::{
    cause,
    class::{self, FailureClass, RetrySame},
    delay,
    details::Details,
    error_body,
    errors::{CoolingDown, Redirected},
    retry_after,
    rules::{Said, judge},
    stop,
};
use crate::{error::chain, llm::dialect::StreamFailure};

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
    /// How long the upstream asks to be left alone, at most 30 days. Its head
    /// goes before its words, which count only where waiting helps.
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
    /// stream: some upstreams report an error, or that the model refused, under
    /// 200. Where it was not read, is compressed or longer than 64 KiB, the head
    /// alone decides. `now` is the wall clock's, for a `retry-after` that names
    /// a date.
    ///
    /// An `x-terminal-reason` is taken for that of a run which is not ours.
    /// A [`Classifier`] puts a program's own rules in front.
    #[must_use]
    pub fn of_answer(
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Option<Self> {
        Classifier::new().of_answer(status, headers, body, now)
    }

    /// Judges the event by which a stream reported that it failed.
    #[must_use]
    pub fn of_stream(failure: &StreamFailure) -> Self {
        Classifier::new().of_stream(failure)
    }

    /// Judges why a model stopped, in the words of
    /// [`StreamReader::stop_reason`](crate::llm::stream::StreamReader::stop_reason); `None` unless it
    /// refused or its context was full.
    ///
    /// Another model is of use only as long as the caller has seen nothing.
    #[must_use]
    pub fn of_stop(reason: &str) -> Option<Self> {
        stop::class_of(reason).map(Self::new)
    }

    /// Judges an error that came in place of an answer, or of the rest of one.
    ///
    /// Where [nobody was asked](CoolingDown), it is what failed before, and is
    /// worth no try before the first may be asked again.
    ///
    /// Its message stays empty: an error's text is not the upstream's, and may
    /// name hosts that are nobody's business.
    #[must_use]
    pub fn of_error(error: &(dyn Error + 'static)) -> Self {
        let cooling = chain(error).find_map(|error| error.downcast_ref::<CoolingDown>());
        match cooling {
            Some(cooling) => Self {
                retry_after: Some(cooling.soonest()),
                ..Self::new(cooling.class())
            },
            None => Self {
                status: chain(error)
                    .find_map(|error| error.downcast_ref::<Redirected>())
                    .map(|redirected| redirected.status),
                ..Self::new(cause::class_of(error))
            },
        }
    }

    /// Whether the same candidate may be asked again, as far as the failure is
    /// concerned; budgets come on top.
    ///
    /// The upstream may forbid what the class allows, never allow what it forbids.
    #[must_use]
    pub fn is_worth_repeating(&self) -> bool {
        self.class.same() != RetrySame::No && self.should_retry != Some(false)
    }
}

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
