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
    class::{self, Concern, FailureClass, RetrySame, TryOther},
    error_body, error_status,
    errors::{self, AllCandidatesCoolingDown, Redirected},
    evidence::Evidence,
    judgment::{self, Circumstances, Easing, Judgment, Rest, Suspicion},
    prose, retry_after,
    signals::{PUT_OFF, Signal},
    stop_reasons,
};
use crate::{dialect::StreamFailure, error::chain, is_broken_json, is_plain};

/// The longest body of an answer, in bytes, that is parsed for an error.
const MAX_BODY: usize = 64 * 1024;

/// The signal of a failure that only a stop reason shows.
const STOP_REASON: &str = "stop reason";

/// Classifies answers by the program's own rules first, then by those of known providers.
///
/// # Examples
///
/// A private gateway that reports errors under 200:
///
/// ```
/// use std::time::SystemTime;
/// use http::{HeaderMap, StatusCode};
/// use tower_agent_llm::failure::{FailureClass, Classifier};
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
    // What the program adds is shared, because layers clone the classifier for each call.
    own: Option<Arc<Own>>,
}

/// The rules and the rows of the program.
#[derive(Clone, Default)]
struct Own {
    rules: Vec<Arc<Rule>>,
    signals: Vec<Signal>,
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
        Self { own: None }
    }

    /// Adds rows to the table of signals, after those added before and before this crate's own.
    ///
    /// The rules decide before the rows.
    #[must_use]
    pub fn signals(mut self, signals: impl IntoIterator<Item = Signal>) -> Self {
        let own = self.own.get_or_insert_default();
        Arc::make_mut(own).signals.extend(signals);
        self
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
        let own = self.own.get_or_insert_default();
        Arc::make_mut(own).rules.push(Arc::new(rule));
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
        self.of_answer_at(status, headers, body, false, &|| now)
    }

    /// Classifies an answer. The clock is read only for a failed one.
    ///
    /// `is_whole` says that the body is known to be a complete JSON object.
    #[doc(hidden)]
    pub fn of_answer_at(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        is_whole: bool,
        now: &dyn Fn() -> SystemTime,
    ) -> Option<Failure> {
        let is_failure = class::is_failure_status(status);
        if !is_failure && !status.is_success() {
            return None;
        }
        let whole = body;
        let body = if is_plain(headers) { body } else { b"" };
        let is_page = error_body::is_page(headers, body);
        let body = if body.len() > MAX_BODY { b"" } else { body };
        let framed = match is_failure {
            true => error_body::unframed(body),
            false if is_whole => None,
            false => error_body::before_events(body),
        };
        let body = framed.unwrap_or(body);
        // An HTML page does not count as cut JSON, even if its content type is JSON.
        let may_be_cut = !is_failure && !is_page && framed.is_none() && !is_whole;
        let is_cut = may_be_cut && is_broken_json(headers, whole);
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
        let ruled = ruled.map(|class| (class, "rule"));
        let stop = match is_error || ruled.is_some() {
            true => None,
            false => Some((stop_reasons::of_answer(body)?, STOP_REASON)),
        };
        let ruled = ruled
            .or(stop)
            .or(is_cut.then_some((FailureClass::Transport, "cut JSON")));
        let status = is_failure.then_some(status);
        let mut failure = self.judge(headers, status, &error, body, is_page, ruled, now());
        if stop.is_some() {
            failure = failure.of_request();
        }
        if !is_failure && is_error && !is_page && !is_cut && error_body::is_error_alone(body) {
            failure.right_status = Some(error_status::of(&error, failure.class, failure.status));
        }
        Some(failure)
    }

    /// Classifies the event by which a stream reported that it failed.
    ///
    /// The times in the event count from `now`, the wall clock.
    #[must_use]
    pub fn of_stream(&self, failure: &StreamFailure, now: SystemTime) -> Failure {
        let headers = HeaderMap::new();
        let ruled = self.ask(&Answered {
            status: None,
            headers: &headers,
            body: &failure.body,
            error: failure,
        });
        let ruled = ruled.map(|class| (class, "rule"));
        let stop = match ruled.is_none() && failure.code.is_empty() && failure.message.is_empty() {
            true => stop_reasons::of_answer(&failure.body).map(|class| (class, STOP_REASON)),
            false => None,
        };
        let ruled = ruled.or(stop);
        let judged = self.judge(&headers, None, failure, &failure.body, false, ruled, now);
        let mut judged = match stop {
            Some(_) => judged.of_request(),
            None => judged,
        };
        judged.right_status = Some(error_status::of(failure, judged.class, judged.status));
        judged
    }

    /// Classifies an answer under a good status that holds nothing. It may say why all the same.
    #[must_use]
    #[doc(hidden)]
    pub fn of_nothing(&self, headers: &HeaderMap, body: &[u8], now: SystemTime) -> Failure {
        let body = if body.len() > MAX_BODY { b"" } else { body };
        let error = StreamFailure::read(body);
        let judge = |ruled| self.judge(headers, None, &error, body, false, ruled, now);
        let failure = judge(None);
        let failure = match failure.judgment.as_ref() {
            Some(judgment) if judgment.is_by_default() => {
                judge(Some((FailureClass::ModelFault, "empty answer")))
            }
            _ => failure,
        };
        // What was not an error has no message.
        let message = String::new();
        Failure { message, ..failure }
    }

    /// Judges a failed answer; `ruled` is the class that was decided already.
    #[allow(clippy::too_many_arguments, reason = "the parts of one answer")]
    fn judge(
        &self,
        headers: &HeaderMap,
        status: Option<StatusCode>,
        error: &StreamFailure,
        body: &[u8],
        is_page: bool,
        ruled: Option<(FailureClass, &'static str)>,
        now: SystemTime,
    ) -> Failure {
        let evidence = Evidence::read(headers, error, body, now);
        let status = status.or(evidence.status);
        let around = Circumstances {
            status,
            is_page,
            ruled,
            ended: class::of_reason(text(headers, "x-terminal-reason")),
            own: self.own_signals(),
        };
        let judged = judgment::judge(&evidence, &around);
        Failure {
            status,
            message: error.message.trim().to_owned(),
            retry_after: judged.retry_after.map(retry_after::capped),
            should_retry: match text(headers, "x-should-retry") {
                "true" => Some(true),
                "false" => Some(false),
                _ => None,
            },
            judgment: Some(Box::new(judged.judgment)),
            ..Failure::new(judged.class)
        }
    }

    fn ask(&self, answered: &Answered<'_>) -> Option<FailureClass> {
        self.rules().find_map(|rule| rule(answered))
    }

    fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.own.iter().flat_map(|own| own.rules.iter())
    }

    fn own_signals(&self) -> &[Signal] {
        self.own.as_ref().map_or(&[], |own| &own.signals)
    }
}

impl fmt::Debug for Classifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Classifier")
            .field("rules", &self.rules().count())
            .field("signals", &self.own_signals())
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
    /// status that the error states.
    ///
    /// An error states its status as its code, or as `status_code`, `statusCode` or `status`, in it
    /// or beside it: a number from 400 to 599. A good status is never stored here. An error under a
    /// good status or in a stream that states none has `None` as its status. So has a failure
    /// without an answer.
    pub status: Option<StatusCode>,
    /// The upstream's error message, at most 1 KiB; empty if there is none.
    pub message: String,
    /// The delay that the upstream asks for, at most 30 days. For a [`AllCandidatesCoolingDown`], the time until
    /// the first candidate may be tried again.
    ///
    /// A delay in the headers comes before one in the body. The delay in the body counts only
    /// if the class allows a retry of the same candidate.
    pub retry_after: Option<Duration>,
    /// The upstream's advice in `x-should-retry`, whether to retry.
    pub should_retry: Option<bool>,
    /// Whether the host's name could not be resolved, so that no model there can be reached.
    #[doc(hidden)]
    pub is_unresolved: bool,
    /// Whether a step window passed before an answer that does not stream: the upstream may have
    /// been at work.
    #[doc(hidden)]
    pub is_slow: bool,
    /// The status that the answer should have had, if it is an error under a good status.
    #[doc(hidden)]
    pub right_status: Option<StatusCode>,
    // Boxed, because the outcome of each attempt has room for a failure.
    judgment: Option<Box<Judgment>>,
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
            right_status: None,
            judgment: None,
        }
    }

    /// Classifies an answer; the result is `None` for a healthy one, and for a 1xx or 3xx.
    ///
    /// `body` is the whole body of an error, or of an answer that is not an event stream: some
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

    /// Classifies the event by which a stream reported that it failed; `now` is the wall clock.
    #[must_use]
    pub fn of_stream(failure: &StreamFailure, now: SystemTime) -> Self {
        Classifier::new().of_stream(failure, now)
    }

    /// Classifies a stop reason; `None` unless the model refused, its context was full, or the
    /// answer is broken.
    ///
    /// `reason` is the stop reason that
    /// [`StreamReader::stop_reason`](crate::stream::StreamReader::stop_reason)
    /// returns.
    ///
    /// After a refusal another model helps only as long as the caller has seen no
    /// content.
    #[must_use]
    pub fn of_stop(reason: &str) -> Option<Self> {
        let failure = stop_reasons::class_of(reason).map(Self::new)?;
        Some(match stop_reasons::fault(reason) {
            Some(_) => failure.with_signal(STOP_REASON).of_request(),
            None => failure,
        })
    }

    /// Sets the signal of a failure that this crate found itself.
    fn with_signal(mut self, signal: &'static str) -> Self {
        let mut judgment = Judgment::of_class(self.class, self.retry_after);
        judgment.signal = signal.into();
        self.judgment = Some(Box::new(judgment));
        self
    }

    /// Makes the failure one of this request alone: the next answer may be whole, so nothing rests.
    fn of_request(mut self) -> Self {
        if let Some(judgment) = &mut self.judgment {
            judgment.concern = Concern::Request;
            judgment.rest = None;
            judgment.suspicion = None;
        }
        self
    }

    /// Classifies the error of a call, before or after the head of the answer.
    ///
    /// If [all candidates are cooling down](AllCandidatesCoolingDown), the class is that of the candidate
    /// with the cooldown that ends first, and the delay is the time until then.
    ///
    /// The message stays empty: the error's text is not the upstream's, and may name internal
    /// hosts.
    #[must_use]
    pub fn of_error(error: &(dyn Error + 'static)) -> Self {
        match AllCandidatesCoolingDown::find(error) {
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

    /// The signal that decided the class: the name or phrase that the answer has, such as
    /// `insufficient_quota`, or `status 429`; empty for a failure without an answer.
    ///
    /// Whoever disagrees puts a [`Signal`] of their own in front.
    #[must_use]
    pub fn signal(&self) -> &str {
        self.judgment
            .as_ref()
            .map_or("", |judgment| &judgment.signal)
    }

    /// Whether another server of these layers puts the request off: its operator has paused the run or
    /// admits no new one, or it has lost its peers. Nothing has failed then.
    #[doc(hidden)]
    #[must_use]
    pub fn is_put_off(&self) -> bool {
        self.class == FailureClass::Caller && PUT_OFF.contains(&self.signal())
    }

    /// What the failure concerns.
    #[must_use]
    pub fn concern(&self) -> Concern {
        self.judgment
            .as_ref()
            .map_or(self.class.concern(), |judgment| judgment.concern)
    }

    /// Which other candidate is worth a try after this failure.
    #[must_use]
    pub fn fallback(&self) -> TryOther {
        match (self.class.fallback(), self.concern()) {
            _ if self.is_unresolved => TryOther::Provider,
            // The account's other models may serve.
            (TryOther::Credential, Concern::Model | Concern::ModelOfAccount) => TryOther::Yes,
            (other, _) => other,
        }
    }

    /// The rest that the failure begins for other calls.
    #[must_use]
    #[doc(hidden)]
    pub fn rest(&self) -> Option<Rest> {
        match &self.judgment {
            Some(judgment) => judgment.rest,
            None => Judgment::of_class(self.class, self.retry_after).rest,
        }
    }

    /// What takes the place of [`rest`](Self::rest) if its words are not the request's own.
    #[must_use]
    #[doc(hidden)]
    pub fn easing(&self) -> Option<&Easing> {
        self.judgment.as_ref()?.easing.as_ref()
    }

    /// The rest that the failure begins once a second witness confirms it.
    #[must_use]
    #[doc(hidden)]
    pub fn suspicion(&self) -> Option<&Suspicion> {
        self.judgment.as_ref()?.suspicion.as_ref()
    }

    /// Whether the candidate refused turns of the conversation that only another one can read or
    /// has written, such as signed thinking.
    #[must_use]
    #[doc(hidden)]
    pub fn refuses_turns_of_others(&self) -> bool {
        const PHRASES: [&str; 8] = [
            "`signature` in `thinking`",
            "signature in thinking",
            "thought_signature",
            "thought signature",
            "encrypted content",
            "encrypted_content",
            "reasoning_content in the thinking mode",
            "reasoning_content` in the thinking mode",
        ];
        let has = |phrase: &&str| prose::has(&self.message, phrase);
        self.class == FailureClass::Caller && PHRASES.iter().any(has)
    }

    /// Whether the failure allows a retry with the same candidate; budgets still apply.
    ///
    /// The upstream may forbid a retry that the class allows, but not allow one that
    /// the class forbids. A step timeout of an answer that does not stream allows none.
    #[must_use]
    pub fn is_worth_repeating(&self) -> bool {
        self.class.retry() != RetrySame::No && self.should_retry != Some(false) && !self.is_slow
    }
}

fn text(headers: &HeaderMap, name: impl AsHeaderName) -> &str {
    let value = headers.get(name).map(HeaderValue::to_str);
    value.and_then(Result::ok).unwrap_or_default()
}
