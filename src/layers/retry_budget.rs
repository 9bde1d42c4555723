//! Repeats a failed attempt within a budget, and never in a run that is over.
//!
//! An agent that gets an error tries again, and so do its program, its client library and each
//! gateway on the way; in an outage the repeats of a hundred agents prolong the outage. And a retry
//! that cannot distinguish "this attempt failed" from "the run is over" goes on paying for a caller
//! that has left. A [`RetryBudget`] sets three bounds: on the attempts at one candidate within a
//! call, on the failures that the caller gets within a run, and on the repeats to one candidate by
//! all runs together. Before each repeat the layer checks first whether the run is over: see
//! [`attempt`](crate::attempt).
//!
//! # What is repeated
//!
//! The layer repeats after failures that [`FailureClass::retry`] allows to repeat, unless the
//! upstream forbids it by `x-should-retry`: broken connections, overload, rate limits, errors of
//! the server, also an error event or a broken end before a stream's first content. An overloaded
//! candidate is repeated only if no other candidate can serve. An attempt that was silent for a
//! step window is repeated once per candidate, if its request asks for a stream or its answer is
//! one, and no other candidate can serve. Otherwise it is not repeated.
//!
//! Once the layer has committed to an answer, in a stream at the first content at the latest, it
//! repeats nothing. A compressed answer is classified by its head alone: without a
//! [`ModelFallbackLayer`](crate::ModelFallbackLayer) outside, which asks for plain answers, set
//! `accept-encoding: identity`.
//!
//! A redirect is never repeated. Without a candidate that has a base URL the caller gets the
//! redirect like any answer: the program decides where its own service sends requests.
//!
//! If the upstream asks for a wait, by `retry-after` or in its error, the layer waits exactly that
//! long. It does not repeat if that wait is longer than
//! [`max_retry_after`](crate::RetryBudget::max_retry_after), or is longer than the budget's first
//! [delay](crate::RetryBudget::delays) while another candidate can answer at once. Other waits are
//! [jittered](crate::RetryBudget::jitter). Each attempt's request has the number of the attempt as
//! `x-attempt`.
//!
//! # What is counted
//!
//! - Within a call: [attempts per candidate](crate::RetryBudget::max_attempts_per_candidate), less
//!   the retries that the caller's client reports in `x-stainless-retry-count`, but at least one.
//! - Within a run: failures [of the same kind](crate::RetryBudget::per_error_key), [of any
//!   kind](crate::RetryBudget::per_run) and, if set, [in a
//!   row](crate::RetryBudget::consecutive_errors) that the caller gets. These are calls that failed
//!   after all their attempts, even if the caller does not read the failed answer to its end, and
//!   tools that failed. The kind is an [`ErrorKey`](crate::run::ErrorKey): the candidate, model or
//!   tool that failed, and the message without its ids, numbers, times and addresses. By default
//!   the failure that exceeds a limit, or completes the row, ends the run, once the caller has got
//!   its answer. If [`count`](crate::RetryBudget::count) says so, failed attempts count too, but
//!   not in a row, and an attempt that exceeds the limit of its kind is not repeated, but ends no
//!   run.
//! - For all runs: the [shared](crate::RetryBudget::shared) repeats, in a bucket for each of the
//!   first 256 candidates, one for all others, and one for requests without a candidate. Each first
//!   attempt deposits a fraction of a repeat, the ratio, and a floor grants some repeats per second
//!   in any case. In an outage the attempts at a candidate are at most the candidate's first
//!   attempts, plus the ratio times these, plus the earlier deposits, plus the floor for each
//!   second and one second more. Nested layers that share the budget deposit once per call.
//! - Within a run, if the [idle breaker](crate::RetryBudget::idle_breaker) is set: the number of
//!   consecutive attempts that were silent for their step window.
//!
//! # When the clock runs
//!
//! Ceilings run during the wait before a repeat, step windows do not. The layer does not repeat if
//! the next deadline would leave the attempt less time, after the wait, than
//! [`min_attempt`](crate::RetryBudget::min_attempt).
//!
//! # Same instant
//!
//! A deadline of the call or the run that passes in the instant of a failure wins: nothing
//! is repeated.
//!
//! # Order
//!
//! This layer belongs inside of [`ModelFallbackLayer`](crate::ModelFallbackLayer) and of the layers
//! that limit the call; outside of those that limit an attempt. The inner service must be `Clone`,
//! and its response bodies `Unpin`.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the attempt in progress, and no attempt follows. If this
//! layer opened a run or a call for the request, or was the first layer to get a call that the
//! program attached, a drop before the answer is complete also ends that node as aborted. A
//! [`Permit`] that is dropped before it is spent returns its repeat to the budget.
//!
//! # Panics
//!
//! A pending poll of a call with a deadline, or in the wait before a repeat, panics outside of a
//! tokio runtime with its timer enabled.
//!
//! # Examples
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tower_agent::BoxError> {
//! use std::{sync::Arc, sync::atomic::{AtomicU32, Ordering}, time::Duration};
//! use bytes::Bytes;
//! use http::{Request, Response, StatusCode};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{ReplayBody, RetryBudget, RetryBudgetLayer};
//!
//! let calls = Arc::new(AtomicU32::new(0));
//! let seen = calls.clone();
//! let budget = RetryBudget::new().delays(Duration::from_millis(1), Duration::from_millis(2));
//! let service = ServiceBuilder::new()
//!     .layer(RetryBudgetLayer::new(budget))
//!     .service(service_fn(move |_: Request<ReplayBody>| {
//!         let call = seen.fetch_add(1, Ordering::SeqCst);
//!         async move {
//!             let mut answer = Response::new(Full::<Bytes>::default());
//!             if call == 0 {
//!                 *answer.status_mut() = StatusCode::BAD_GATEWAY;
//!             }
//!             Ok::<_, std::io::Error>(answer)
//!         }
//!     }));
//!
//! let request = Request::post("/v1/chat/completions").body(Full::from("{}"))?;
//! assert_eq!(service.oneshot(request).await?.status(), StatusCode::OK);
//! assert_eq!(calls.load(Ordering::SeqCst), 2);
//! # Ok(())
//! # }
//! ```
//!
//! Makes more attempts, and limits the repeats to a tenth of the traffic:
//!
//! ```
//! use tower_agent::{RetryBudget, RetryBudgetLayer};
//!
//! let budget = RetryBudget::new().max_attempts_per_candidate(4).shared(0.1, 1);
//! let layer = RetryBudgetLayer::new(budget);
//! ```

use std::{
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Method, Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    attempt::{
        AttemptBody, AttemptPolicy, AttemptSettings, AttemptSummary, Attempts, Backoff, Candidate,
        Denial, Permit, RequestTemplate, RetryBudget,
    },
    body::ReplayBody,
    error::BoxError,
    llm::{
        AfterFinish, RequestFields,
        failure::{Classifier, Failure, FailureClass, RetrySame, TryOther},
        may_be_empty, names_stream,
    },
    run::{ErrorAllowance, Run},
};

/// Repeats failed attempts within a budget: see the [module](self).
#[derive(Clone, Debug)]
pub struct RetryBudgetLayer {
    settings: AttemptSettings,
}

impl RetryBudgetLayer {
    /// Makes a layer that repeats as `budget` allows; clones of one budget share its repeats.
    #[must_use]
    pub const fn new(budget: RetryBudget) -> Self {
        Self {
            settings: AttemptSettings::new(budget),
        }
    }

    /// Classifies failed answers by the program's own rules, then by the known errors of providers.
    ///
    /// Give the same classifier to every layer that makes further attempts.
    #[must_use]
    pub fn classifier(mut self, classifier: Classifier) -> Self {
        self.settings.classifier = classifier;
        self
    }

    /// Limits how long the layer holds back an answer, from the opening of the attempt.
    ///
    /// At this limit the layer commits to an answer that has no content yet, unless its head shows
    /// a failure. By default only the end of the attempt and the
    /// [size](crate::attempt#what-is-held-and-until-when) of the held part limit the time. After
    /// the commit a stall is an error that the caller gets.
    ///
    /// If the attempt has a [floor on its speed](crate::layers::step_timeout#a-floor-on-speed), this
    /// setting also holds content back, until the stream has shown its speed.
    #[must_use]
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.settings.hold = Some(hold);
        self
    }

    /// The largest request body that is buffered, in bytes; 32 MiB by default.
    ///
    /// A larger body is an error, a [`LengthLimitError`](http_body_util::LengthLimitError), unless
    /// the body is a [`ReplayBody`] already.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.settings.max_body = bytes;
        self
    }

    /// Sets a hook after every attempt: see
    /// [`RetryBudget::after_attempt`](crate::RetryBudget::after_attempt).
    #[must_use]
    pub fn after_attempt(mut self, hook: impl Fn(&AttemptSummary) + Send + Sync + 'static) -> Self {
        let budget = self.settings.budget.clone();
        self.settings.budget = budget.after_attempt(hook);
        self
    }

    /// How long the layer holds back an answer; `None` if no time limits it.
    pub(crate) const fn held_for(&self) -> Option<Duration> {
        self.settings.hold
    }

    pub(crate) const fn budget(&self) -> &RetryBudget {
        &self.settings.budget
    }
}

impl<S> Layer<S> for RetryBudgetLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Retry {
            inner,
            settings: self.settings.clone(),
        }
    }
}

/// The service of a [`RetryBudgetLayer`].
#[derive(Clone, Debug)]
pub struct Retry<S> {
    inner: S,
    settings: AttemptSettings,
}

/// The response future of [`Retry`].
pub type RetryFuture<S, Q, B> = Attempts<S, Q, B, RetryPolicy>;

/// The response body of [`Retry`].
pub type RetryBody<B> = AttemptBody<B>;

impl<S, Q, B> Service<Request<Q>> for Retry<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error: Into<BoxError>> + Clone,
    Q: Body<Data = Bytes, Error: Into<BoxError>> + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
{
    type Response = Response<RetryBody<B>>;
    type Error = BoxError;
    type Future = RetryFuture<S, Q, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let policy = RetryPolicy::new(self.settings.clone());
        Attempts::new(&mut self.inner, request, policy)
    }
}

/// The attempt policy that sends the same request again, to the same candidate.
#[derive(Debug)]
#[doc(hidden)]
pub struct RetryPolicy {
    settings: AttemptSettings,
    own: Option<Run>,
    /// The caller's request; `None` before `begin` and after `release`.
    request: Option<RetryRequest>,
    /// Whether `deposit` has run for this call, at its first attempt.
    has_deposited: bool,
    /// How many attempts all layers of a call together may make at one candidate.
    max_attempts: u32,
    /// How many more attempts this layer may make, without the current one.
    left: u32,
}

#[derive(Debug)]
struct RetryRequest {
    is_post: bool,
    template: Option<RequestTemplate>,
    body: ReplayBody,
    backoff: Option<Backoff>,
    /// The `model` and `stream` of the request's body, parsed at their first use.
    fields: OnceLock<RequestFields>,
}

impl RetryPolicy {
    #[inline]
    const fn new(settings: AttemptSettings) -> Self {
        Self {
            settings,
            own: None,
            request: None,
            has_deposited: false,
            max_attempts: 1,
            left: 0,
        }
    }

    /// Adds the share of a first attempt to the bucket, unless an outer layer has done so.
    fn deposit(&self) {
        let bucket = self.settings.budget.bucket(self.subject());
        let (Some(own), Some(bucket)) = (&self.own, bucket) else {
            return;
        };
        if own.attempts().first_deposit(Arc::as_ptr(bucket).addr()) {
            bucket.deposit();
        }
    }

    fn next_backoff(&mut self, slowly: bool) -> Duration {
        let (Some(own), Some(request)) = (&self.own, &mut self.request) else {
            return Duration::ZERO;
        };
        // The seed of the jitter includes the call's number, not only the run's seed. With one seed
        // for all calls of a run, those that fail together would also repeat together.
        let seed = || own.seed().wrapping_add(own.node().number());
        let budget = &self.settings.budget;
        let backoff = request
            .backoff
            .get_or_insert_with(|| budget.backoff(seed()));
        backoff.next(slowly)
    }

    fn fields(&self) -> Option<&RequestFields> {
        let RetryRequest { fields, body, .. } = self.request.as_ref()?;
        Some(fields.get_or_init(|| RequestFields::read(&body.gathered()).unwrap_or_default()))
    }
}

impl AttemptPolicy for RetryPolicy {
    const MOVES: bool = false;

    fn settings(&self) -> &AttemptSettings {
        &self.settings
    }

    fn begin(&mut self, own: &Run, request: Request<ReplayBody>) -> Result<(), BoxError> {
        self.own = Some(own.clone());
        let budget = &self.settings.budget;
        let most = budget.settings().max_attempts_per_candidate;
        self.max_attempts = most
            .saturating_sub(client_retries(request.headers()))
            .max(1);
        self.left = self.max_attempts - 1;
        let (head, body) = request.into_parts();
        let is_post = head.method == Method::POST;
        self.request = Some(RetryRequest {
            is_post,
            template: Some(RequestTemplate::new(head)),
            body,
            backoff: None,
            fields: OnceLock::new(),
        });
        budget.limit_errors_of_call(own);
        Ok(())
    }

    fn request(&mut self, _: &Run, number: u32) -> Result<Request<ReplayBody>, BoxError> {
        if !std::mem::replace(&mut self.has_deposited, true) {
            // Deposit here and not in `begin`: a node that ended in between makes no first attempt,
            // and must deposit nothing.
            self.deposit();
        }
        let request = self.request.as_mut().and_then(|request| {
            let body = request.body.clone();
            request.template.as_mut()?.set_attempt(number);
            match self.left {
                0 => Some(request.template.take()?.last(body)),
                _ => Some(request.template.as_mut()?.again(body)),
            }
        });
        request.ok_or_else(|| "request was already consumed".into())
    }

    fn streams(&self) -> bool {
        self.fields().is_some_and(RequestFields::stream)
    }

    fn asks_for_stream(&self) -> bool {
        // An outer layer that has chosen a candidate has read the request.
        let own = self.own.as_ref();
        if own.is_some_and(|own| own.attempts().has_target()) {
            return false;
        }
        let body = self.request.as_ref().map(|request| &request.body);
        body.is_some_and(|body| names_stream(body.segments())) && self.streams()
    }

    fn after_finish(&self) -> AfterFinish {
        let request = self.request.as_ref();
        request.map_or(AfterFinish::Unknown, |it| {
            AfterFinish::of(it.body.segments())
        })
    }

    fn asks_for_content(&self) -> bool {
        let request = self.request.as_ref();
        request.is_some_and(|it| it.is_post && !may_be_empty(&it.body.gathered()))
    }

    fn model(&self) -> Option<&str> {
        self.fields()?.model()
    }

    fn current_candidate(&self) -> Option<&Candidate> {
        self.own.as_ref()?.attempts().served_by()
    }

    fn retry_delay(&mut self, failure: &Failure) -> Result<Duration, Denial> {
        let same = failure.class.retry();
        let own = self.own.as_ref().map(Run::attempts);
        let is_repeated = || own.is_some_and(|own| own.has_repeated_silence());
        let is_used_up = same == RetrySame::Once && is_repeated();
        // A candidate that is overloaded, silent or slow gets no repeat if another one can serve.
        let yields = matches!(
            failure.class,
            FailureClass::Overloaded | FailureClass::StepTimeout | FailureClass::Slow
        );
        let has_others = || own.is_some_and(|own| own.has_others());
        if failure.is_slow {
            return Err(Denial::UnarySilence);
        }
        if is_used_up {
            return Err(Denial::RepeatedSilence);
        }
        if !failure.is_worth_repeating() || yields && has_others() {
            return Err(Denial::Class);
        }
        let settings = self.settings.budget.settings();
        let moves = || failure.fallback() == TryOther::Yes && has_others();
        match failure.retry_after {
            // The layer does not wait long while another candidate can answer at once.
            Some(retry_after) if retry_after > settings.delays.base && moves() => {
                Err(Denial::RetryAfter)
            }
            // The layer waits exactly as long as the upstream asked for, or does not repeat.
            Some(retry_after) if retry_after > settings.max_retry_after => Err(Denial::RetryAfter),
            Some(retry_after) => Ok(retry_after),
            None => Ok(self.next_backoff(same == RetrySame::Slowly)),
        }
    }

    fn find_next(&mut self, _: &Failure) -> Result<(), Denial> {
        let own = self.own.as_ref();
        let tried = own.map_or(0, |own| own.attempts().of_candidate());
        if self.left == 0 || tried >= self.max_attempts {
            Err(Denial::Spent)
        } else {
            Ok(())
        }
    }

    fn take_next(
        &mut self,
        failure: &Failure,
        allowance: ErrorAllowance,
    ) -> Result<Option<Permit<'static>>, Denial> {
        match allowance {
            // The limit on failures in a row counts failures that the caller gets, not attempts.
            ErrorAllowance::Within | ErrorAllowance::RowSpent => {}
            ErrorAllowance::KeySpent | ErrorAllowance::BothSpent => return Err(Denial::Key),
            ErrorAllowance::RunSpent => return Err(Denial::Run),
        }
        let permit = self.settings.budget.withdraw(self.subject());
        let permit = permit.ok_or(Denial::Bucket)?.into_owned();
        if let (RetrySame::Once, Some(own)) = (failure.class.retry(), &self.own) {
            own.attempts().note_repeated_silence();
        }
        // The attempt is used up even if its service does not become ready.
        self.left = self.left.saturating_sub(1);
        Ok(Some(permit))
    }

    fn release(&mut self) {
        self.request = None;
    }
}

/// The header in which a caller's client reports the number of its own retries.
const X_STAINLESS_RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");

/// The number of retries that the caller's client reports for this request; 0 if it reports none
/// that can be read.
///
/// The number lowers the attempts of this layer, to one at the least, and never raises them.
fn client_retries(headers: &HeaderMap) -> u32 {
    let count = headers.get(X_STAINLESS_RETRY_COUNT);
    let count = count.and_then(|count| count.to_str().ok()?.trim().parse().ok());
    count.unwrap_or(0)
}
