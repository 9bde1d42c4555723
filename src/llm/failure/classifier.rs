//! Classifies failed answers, failure events of streams, and errors: the rules, and their
//! order.

use std::{
    error::Error,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderValue, StatusCode, header::AsHeaderName};

use super::{
    class::{self, FailureClass, RetrySame},
    error_body::{self, Details},
    error_codes,
    errors::{self, CoolingDown, Redirected},
    json_outline, retry_after, stop_reasons,
};
use crate::{
    error::chain,
    llm::{dialect::StreamFailure, is_plain},
};

/// The longest body of an answer, in bytes, that is parsed for an error.
const MAX_BODY: usize = 64 * 1024;

/// Classifies answers by the program's own rules first, then by those of known providers.
///
/// # Examples
///
/// A private gateway that reports errors under 200:
///
/// ```
/// use std::time::SystemTime;
/// use http::{HeaderMap, StatusCode};
/// use tower_agent::llm::failure::{FailureClass, Classifier};
///
/// let classifier = Classifier::new().rule(|answered| {
///     let is_busy = answered.headers.get("x-gateway")? == "busy";
///     is_busy.then_some(FailureClass::Overloaded)
/// });
///
/// let mut headers = HeaderMap::new();
/// let now = SystemTime::UNIX_EPOCH;
/// assert_eq!(classifier.of_answer(StatusCode::OK, &headers, b"{}", now), None);
///
/// headers.insert("x-gateway", "busy".parse().unwrap());
/// let failure = classifier.of_answer(StatusCode::OK, &headers, b"{}", now).unwrap();
/// assert_eq!(failure.class, FailureClass::Overloaded);
/// ```
#[derive(Clone, Default)]
pub struct Classifier {
    // The rules are shared, because layers clone the classifier for each call.
    rules: Option<Arc<Vec<Arc<Rule>>>>,
}

type Rule = dyn Fn(&Answered<'_>) -> Option<FailureClass> + Send + Sync;

/// The input of a rule: an answer, or the failure event of a stream.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Answered<'a> {
    /// The status of the answer, good or bad; `None` for an event of a stream.
    pub status: Option<StatusCode>,
    /// The headers of the answer; empty for an event of a stream.
    pub headers: &'a HeaderMap,
    /// The body of the answer, or the data of the stream's event.
    ///
    /// The bytes are empty for a body that is compressed or longer than 64 KiB, and for
    /// an event longer than 16 KiB.
    pub body: &'a [u8],
    /// The error that the body or the event reports; its texts are empty if there is none.
    pub error: &'a StreamFailure,
}

impl Classifier {
    /// Creates a classifier without rules of the program.
    #[must_use]
    pub const fn new() -> Self {
        Self { rules: None }
    }

    /// Adds a rule, a function that classifies answers, which runs after the rules added
    /// before.
    ///
    /// If a rule returns `None`, the next rule decides; a class that a rule returns is final. The
    /// rules do not run for a 1xx or 3xx, and run for an event stream only at its failure event.
    ///
    /// The layers also ask the rules about the answers with a good status that they read whole.
    /// They do not ask about event streams without a failure, compressed answers, and those longer
    /// than 256 KiB. So a rule should be quick if the status is good.
    #[must_use]
    pub fn rule<F>(mut self, rule: F) -> Self
    where
        F: Fn(&Answered<'_>) -> Option<FailureClass> + Send + Sync + 'static,
    {
        let rules = self.rules.get_or_insert_default();
        Arc::make_mut(rules).push(Arc::new(rule));
        self
    }

    /// Classifies an answer by the program's rules, then as [`Failure::of_answer`] does.
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
        let body = if is_plain(headers) { body } else { b"" };
        let is_page = error_body::is_page(headers, body);
        let body = if body.len() > MAX_BODY { b"" } else { body };
        // An HTML page does not count as cut JSON, even if its content type is JSON.
        let is_cut = !is_failure && !is_page && json_outline::is_broken_json(headers, whole);
        let is_error = is_failure || is_page || is_cut || error_body::is_error(body);
        // The text of a page, or of an answer that was cut, is no message about an error.
        let error = match is_error && !is_page && !is_cut {
            true => StreamFailure::read(body),
            false => StreamFailure::default(),
        };
        let ruled = self.ask(&Answered {
            status: Some(status),
            headers,
            body,
            error: &error,
        });
        let ruled = match is_error {
            true => ruled.or(is_cut.then_some(FailureClass::Transport)),
            false => Some(ruled.or_else(|| stop_reasons::of_answer(body))?),
        };
        let mut head = FailureHead::read(headers, now);
        head.status = is_failure.then_some(status);
        head.is_page = is_page;
        Some(head.judge(&error, body, ruled))
    }

    /// Classifies the event by which a stream reported that it failed.
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
        f.debug_struct("Classifier")
            .field("rules", &self.rules().count())
            .finish()
    }
}

/// The classification of one failure of an upstream, with the details that matter for a retry.
///
/// A failure contains nothing about the run: a layer that retries first checks whether its own node
/// has ended.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class of the failure.
    pub class: FailureClass,
    /// The status of the failed answer; for an error under a good status or in a stream, the
    /// status in the error's code.
    ///
    /// A good status is never stored here. If the error's code is no number from 400 to 599, an
    /// error under a good status or in a stream has `None` as its status. So has a failure without
    /// an answer.
    pub status: Option<StatusCode>,
    /// The upstream's error message, at most 1 KiB; empty if there is none.
    pub message: String,
    /// The delay that the upstream asks for, at most 30 days. For a [`CoolingDown`], the time until
    /// the first candidate may be tried again.
    ///
    /// A delay in the headers comes before one in the body. The delay in the body counts only
    /// if the class allows a retry of the same candidate.
    pub retry_after: Option<Duration>,
    /// The upstream's advice in `x-should-retry`, whether to retry.
    pub should_retry: Option<bool>,
    /// Whether the host's name could not be resolved, so that no model there can be reached.
    pub(crate) is_unresolved: bool,
    /// Whether a step window passed before an answer that does not stream: the upstream may have
    /// been at work.
    pub(crate) is_slow: bool,
}

impl Failure {
    /// Creates a failure of this class, without details from the upstream.
    #[must_use]
    pub const fn new(class: FailureClass) -> Self {
        Self {
            class,
            status: None,
            message: String::new(),
            retry_after: None,
            should_retry: None,
            is_unresolved: false,
            is_slow: false,
        }
    }

    /// Classifies an answer; the result is `None` for a healthy one, and for a 1xx or 3xx.
    ///
    /// `body` is the whole body of an error, or of an answer that is no event stream: some
    /// upstreams report an error, or a refusal of the model, under 200. Pass an empty slice for a
    /// body that was not read. Of a body longer than 64 KiB the classifier only sees whether it
    /// is an HTML page, or cut JSON; of a compressed body it sees nothing. `now` is the wall
    /// clock, for a `retry-after` that is a date.
    ///
    /// A failed answer with a known `x-terminal-reason` comes from a run of another process,
    /// and is classified by that reason. A [`Classifier`] adds the program's own rules.
    #[must_use]
    pub fn of_answer(
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Option<Self> {
        Classifier::new().of_answer(status, headers, body, now)
    }

    /// Classifies the event by which a stream reported that it failed.
    #[must_use]
    pub fn of_stream(failure: &StreamFailure) -> Self {
        Classifier::new().of_stream(failure)
    }

    /// Classifies a stop reason; `None` unless the model refused or its context was full.
    ///
    /// `reason` is the stop reason that
    /// [`StreamReader::stop_reason`](crate::llm::stream::StreamReader::stop_reason)
    /// returns.
    ///
    /// After a refusal another model helps only as long as the caller has seen no
    /// content.
    #[must_use]
    pub fn of_stop(reason: &str) -> Option<Self> {
        stop_reasons::class_of(reason).map(Self::new)
    }

    /// Classifies the error of a call, before or after the head of the answer.
    ///
    /// If [all candidates are cooling down](CoolingDown), the class is that of the candidate
    /// with the cooldown that ends first, and the delay is the time until then.
    ///
    /// The message stays empty: the error's text is not the upstream's, and may name internal
    /// hosts.
    #[must_use]
    pub fn of_error(error: &(dyn Error + 'static)) -> Self {
        match CoolingDown::find(error) {
            Some(cooling) => Self {
                retry_after: Some(cooling.soonest()),
                ..Self::new(cooling.class())
            },
            None => Self {
                status: chain(error)
                    .find_map(|error| error.downcast_ref::<Redirected>())
                    .map(|redirected| redirected.status),
                is_unresolved: errors::is_unresolved(error),
                ..Self::new(errors::class_of(error))
            },
        }
    }

    /// Whether the failure allows a retry with the same candidate; budgets still apply.
    ///
    /// The upstream may forbid a retry that the class allows, but not allow one that
    /// the class forbids. A step timeout of an answer that does not stream allows none.
    #[must_use]
    pub fn is_worth_repeating(&self) -> bool {
        self.class.same() != RetrySame::No && self.should_retry != Some(false) && !self.is_slow
    }
}

/// The values of an answer's head that serve to classify a failure.
#[derive(Default)]
pub(super) struct FailureHead<'a> {
    reason: &'a str,
    kind: &'a str,
    /// The status of the answer, if that status is a failure.
    pub(super) status: Option<StatusCode>,
    /// Whether the answer's body is an HTML page.
    pub(super) is_page: bool,
    retry_after: Option<Duration>,
    should_retry: Option<bool>,
}

impl<'a> FailureHead<'a> {
    /// Reads the headers of an answer; `now` is the wall clock, for dates.
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

    /// Classifies the failure that `error` reports in `body`.
    ///
    /// `ruled` is the class that a rule, cut JSON or a stop reason has decided already.
    pub(super) fn judge(
        self,
        error: &StreamFailure,
        body: &[u8],
        ruled: Option<FailureClass>,
    ) -> Failure {
        let status = self.status.or_else(|| numeric(&error.code));
        let message = error.message.trim();
        let details = Details::read(body);
        let names = [self.kind, &error.kind, &error.code, &details.reason];
        let class = ruled.unwrap_or_else(|| self.class(status, &names, message, &details));
        // Without a retry the delay means nothing: Google asks for half a minute even if the
        // quota of the day is used up.
        let asked = || match class.same() {
            RetrySame::No => None,
            _ => details
                .retry_delay
                .or_else(|| retry_after::in_prose(message)),
        };
        Failure {
            status,
            message: message.to_owned(),
            retry_after: self.retry_after.or_else(asked).map(retry_after::capped),
            should_retry: self.should_retry,
            ..Failure::new(class)
        }
    }

    /// Decides the class of a failed answer.
    ///
    /// `status` is that of the answer, or else the one in the error's code. `names` are
    /// `error.type`, `error.code` and their equivalents of other providers; empty if missing.
    ///
    /// Exact names come before phrases, and both before the status, because proxies keep an
    /// error's body more often than its status. The order among several classes is that of
    /// [`EXACT`](error_codes::EXACT) and [`SENTENCES`](error_codes::SENTENCES).
    fn class(
        &self,
        status: Option<StatusCode>,
        names: &[&str],
        message: &str,
        details: &Details,
    ) -> FailureClass {
        let class = class_of_reason(self.reason)
            .or_else(|| error_codes::find_code(error_codes::EXACT, names))
            .or_else(|| details.class(status))
            .or_else(|| {
                let status = status.or_else(|| error_codes::status_of(names));
                error_codes::find_message(status, names, message)
            })
            .or_else(|| error_codes::find_code(error_codes::SHARED, names))
            .or_else(|| self.class_of_status(status?, message))
            .or_else(|| error_codes::find_code(error_codes::BROAD, names))
            .or_else(|| names.iter().find_map(|name| class_of_reason(name)))
            .unwrap_or_else(|| class::fallback_class(status));
        // Whether the request exceeds a rate limit by itself, however long the caller waits.
        let is_too_large = || {
            status == Some(StatusCode::PAYLOAD_TOO_LARGE)
                || error_codes::has(message, "request too large for")
        };
        match class {
            FailureClass::RateLimit if is_too_large() => FailureClass::RequestLimit,
            class => class,
        }
    }

    fn class_of_status(&self, status: StatusCode, message: &str) -> Option<FailureClass> {
        let asks_soon = || {
            retry_after::in_prose(message).is_some_and(|delay| delay < Duration::from_secs(3600))
        };
        match class::class_of_status(status)? {
            // A 402 with a delay is a rate limit: an upstream asks for no delay if no credit is
            // left. In the message only a delay below one hour counts: a longer one may mean the
            // next window of a plan.
            FailureClass::Quota if self.retry_after.is_some() || asks_soon() => {
                Some(FailureClass::RateLimit)
            }
            // A firewall sends its page under 403: it blocks by location, not by credential.
            _ if self.is_page && status == StatusCode::FORBIDDEN => Some(FailureClass::Region),
            class => Some(class),
        }
    }
}

fn text(headers: &HeaderMap, name: impl AsHeaderName) -> &str {
    let value = headers.get(name).map(HeaderValue::to_str);
    value.and_then(Result::ok).unwrap_or_default()
}

/// Reads an error's code as a status if it is a number from 400 to 599; some providers use
/// other numbers.
fn numeric(code: &str) -> Option<StatusCode> {
    let status: StatusCode = code.parse().ok()?;
    (status.is_client_error() || status.is_server_error()).then_some(status)
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
fn class_of_reason(name: &str) -> Option<FailureClass> {
    match name {
        "step_timeout" | "max_turn_time" | "timeout" | "client_disconnect" | "aborted"
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
