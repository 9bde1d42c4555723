//! Tries again what failed, as far as a budget pays for it, and never for a run
//! that is over.
//!
//! An agent that meets an error tries again, and so does its harness, its
//! client and the gateway below; a hundred agents that meet the same outage
//! become the outage. And a retry that cannot tell "this attempt failed" from
//! "the run is over" goes on paying for a user who has left. A [`RetryBudget`]
//! bounds the first in three places: attempts to one candidate within a call,
//! failures that reach the harness within a run, and repeats to one candidate
//! by all runs together. The second is asked first, each time: see
//! [`attempt`](crate::attempt).
//!
//! # What is repeated
//!
//! What [`FailureClass::same`] allows and
//! the upstream's `x-should-retry` does not forbid: connections that broke,
//! overload, rate limits, errors of the server, also as the first event of a
//! stream or in place of its end. An attempt that was silent for a step window
//! is repeated once; one that does not stream, never. Nothing is repeated once
//! the first content was handed on. An answer that is compressed can be judged
//! by its status alone: without a [`ModelFallbackLayer`](crate::ModelFallbackLayer)
//! outside, which asks for plain ones, set `accept-encoding: identity`. A redirect
//! is repeated never, and without a candidate that has a base URL it is an answer as
//! any other: where the program's own service sends its requests is its own matter.
//!
//! `retry-after` is waited for exactly, or, if it is longer than
//! [`max_retry_after`](crate::RetryBudget::max_retry_after), not at all. Otherwise
//! waits are [jittered](crate::RetryBudget::delays). Each attempt says its number
//! upstream, as `x-attempt`.
//!
//! # What is counted
//!
//! - Within a call: [attempts per candidate](crate::RetryBudget::max_attempts_per_candidate).
//!   The count of a caller's own client (`x-stainless-retry-count`) lowers it.
//! - Within a run: failures [of the same kind](crate::RetryBudget::per_error_key)
//!   and [of any kind](crate::RetryBudget::per_run) that reach the harness: calls that
//!   failed after all their attempts, though nobody reads the failed answer to its
//!   end, and tools that failed. The kind is an
//!   [`ErrorKey`]: who failed, and the message without its ids, numbers, times
//!   and addresses. One too many ends the run, once the answer was handed on.
//! - For all runs: [what is shared](crate::RetryBudget::shared), a bucket for each of
//!   the first 256 candidates and one for all the others. A first attempt
//!   deposits a part of a repeat, a floor is always there. So in an outage the
//!   calls to a candidate are at most its first attempts, the ratio of those,
//!   what had piled up, and the floor for each second and one more. Layers in
//!   layers that share the budget deposit once a call.
//!
//! - Within a run, if the [idle breaker](crate::RetryBudget::idle_breaker) is set:
//!   attempts that were silent for their step window, one after another.
//!
//! # When the clock runs
//!
//! Ceilings run during the wait before a repeat, step windows do not. A repeat
//! for which the time does not last is not begun.
//!
//! # Same instant
//!
//! A deadline of the call or the run that has come beats whatever failed in
//! that instant: nothing is repeated.
//!
//! # Order
//!
//! Inside of [`ModelFallbackLayer`](crate::ModelFallbackLayer) and of the layers
//! that limit the call; outside of those that limit an attempt. The inner
//! service must be `Clone`, its bodies `Unpin`.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the attempt that is under way, and
//! none follows. A [`Permit`] that is dropped before it is spent gives its repeat
//! back.
//!
//! # Panics
//!
//! Polling panics outside of a tokio runtime with its timer enabled, once
//! something is waited for.
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
//! More attempts, and no more than a tenth of the traffic:
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
use http::{HeaderMap, Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    attempt::{
        AttemptBody, AttemptPolicy, Attempts, Backoff, Candidate, Denial, Permit, RequestTemplate,
        RetryBudget, words,
    },
    body::{MAX_BODY, ReplayBody},
    error::BoxError,
    llm::{
        Prompt,
        failure::{Classifier, Failure, FailureClass, RetrySame},
    },
    run::{ErrorAllowance, ErrorKey, Run},
};

/// Repeats what failed, as far as a budget pays for it: see the
/// [module](self).
#[derive(Clone, Debug)]
pub struct RetryBudgetLayer {
    budget: RetryBudget,
    judgement: Classifier,
    hold: Option<Duration>,
    max_body: usize,
}

impl RetryBudgetLayer {
    /// Repeats as `budget` allows. Layers with clones of one budget share what
    /// was spent.
    #[must_use]
    pub const fn new(budget: RetryBudget) -> Self {
        Self {
            budget,
            judgement: Classifier::new(),
            hold: None,
            max_body: MAX_BODY,
        }
    }

    /// How answers are judged: rules of the program's own go before what is
    /// known of the providers. Give the same to every layer that tries again.
    #[must_use]
    pub fn judgement(mut self, judgement: Classifier) -> Self {
        self.judgement = judgement;
        self
    }

    /// How long an answer may be held, from the start of its attempt, before it
    /// counts as committed; as long as its attempt lives, by default. A stall
    /// after that can only be told to the caller.
    #[must_use]
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = Some(hold);
        self
    }

    /// The largest request body that is kept, in bytes; a larger one is an
    /// error, a [`LengthLimitError`](http_body_util::LengthLimitError). 32 MiB
    /// by default.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }
}

impl<S> Layer<S> for RetryBudgetLayer {
    type Service = Retry<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Retry::new(inner, self.clone())
    }
}

/// The service of a [`RetryBudgetLayer`].
#[derive(Clone, Debug)]
pub struct Retry<S> {
    inner: S,
    layer: RetryBudgetLayer,
}

impl<S> Retry<S> {
    const fn new(inner: S, layer: RetryBudgetLayer) -> Self {
        Self { inner, layer }
    }
}

/// The response future of [`Retry`].
pub type RetryFuture<S, Q, B> = Attempts<S, Q, B, RetryPolicy>;

/// The response body of [`Retry`].
pub type RetryBody<B> = AttemptBody<B>;

impl<S, Q, B> Service<Request<Q>> for Retry<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes> + 'static,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Response = Response<RetryBody<B>>;
    type Error = BoxError;
    type Future = RetryFuture<S, Q, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let chain = RetryPolicy::new(&self.layer);
        Attempts::new(&mut self.inner, request, self.layer.max_body, chain)
    }
}

/// The same request again and again, to the same candidate.
#[derive(Debug)]
#[doc(hidden)]
pub struct RetryPolicy {
    budget: RetryBudget,
    judgement: Classifier,
    hold: Option<Duration>,
    own: Option<Run>,
    /// The request; none before it came and once no try follows.
    asked: Option<Box<RetryRequest>>,
    /// Whether the first try was paid in.
    paid: bool,
    /// How many tries of one candidate a call may make, whoever makes them.
    most: u32,
    /// How many more this layer may make after the current one.
    left: u32,
}

/// Boxed: what is in a future is moved once a layer.
#[derive(Debug)]
struct RetryRequest {
    kept: Option<RequestTemplate>,
    body: ReplayBody,
    backoff: Option<Backoff>,
    prompt: OnceLock<Prompt>,
}

impl RetryPolicy {
    fn new(layer: &RetryBudgetLayer) -> Self {
        Self {
            budget: layer.budget.clone(),
            judgement: layer.judgement.clone(),
            hold: layer.hold,
            own: None,
            asked: None,
            paid: false,
            most: 1,
            left: 0,
        }
    }

    /// Whom the request goes to, if a layer further out chose one.
    fn candidate(&self) -> Option<&Candidate> {
        self.own.as_ref()?.served_by()
    }

    /// Pays for a part of a repeat, unless a layer further out did it.
    fn deposit(&self) {
        let (Some(own), Some(bucket)) = (&self.own, self.budget.bucket(self.subject())) else {
            return;
        };
        if own.first_deposit(Arc::as_ptr(bucket).addr()) {
            bucket.deposit();
        }
    }

    fn has_others(&self) -> bool {
        self.own.as_ref().is_some_and(Run::has_others)
    }

    fn wait(&mut self, slowly: bool) -> Duration {
        let Self {
            budget, own, asked, ..
        } = self;
        let (Some(own), Some(asked)) = (own, asked) else {
            return Duration::ZERO;
        };
        // Calls of one run that fail together do not come back together.
        let seed = || own.seed().wrapping_add(own.node().number());
        let backoff = asked.backoff.get_or_insert_with(|| budget.backoff(seed()));
        backoff.next(slowly)
    }

    fn prompt(&self) -> Option<&Prompt> {
        Some(self.asked.as_ref()?.prompt())
    }
}

impl RetryRequest {
    /// What the body says of itself; read only once something failed.
    fn prompt(&self) -> &Prompt {
        self.prompt
            .get_or_init(|| Prompt::read(&self.body.gathered()).unwrap_or_default())
    }
}

impl AttemptPolicy for RetryPolicy {
    const MOVES: bool = false;

    fn begin(&mut self, own: &Run, request: Request<ReplayBody>) -> Result<(), BoxError> {
        self.own = Some(own.clone());
        let most = self.budget.settings().max_attempts_per_candidate;
        self.most = most.saturating_sub(repeated(request.headers())).max(1);
        self.left = self.most - 1;
        let (head, body) = request.into_parts();
        self.asked = Some(Box::new(RetryRequest {
            kept: Some(RequestTemplate::new(head)),
            body,
            backoff: None,
            prompt: OnceLock::new(),
        }));
        self.budget.limit_errors_of_call(own);
        Ok(())
    }

    fn request(&mut self, _: &Run) -> Result<Request<ReplayBody>, BoxError> {
        if !std::mem::replace(&mut self.paid, true) {
            // Here and not before: a node that is over makes no attempt.
            self.deposit();
        }
        let request = self.asked.as_mut().and_then(|asked| {
            let body = asked.body.clone();
            match self.left {
                0 => Some(asked.kept.take()?.last(body)),
                _ => Some(asked.kept.as_mut()?.again(body)),
            }
        });
        request.ok_or_else(|| "a request was sent more often than it was kept for".into())
    }

    fn hold(&self) -> Option<Duration> {
        self.hold
    }

    fn streams(&self) -> bool {
        self.prompt().is_some_and(Prompt::stream)
    }

    fn trusts(&self) -> bool {
        self.candidate().is_some_and(Candidate::is_trusted)
    }

    fn is_elsewhere(&self) -> bool {
        self.candidate().is_some_and(Candidate::is_elsewhere)
    }

    fn subject(&self) -> Option<&str> {
        self.candidate().map(Candidate::label)
    }

    fn budget(&self) -> &RetryBudget {
        &self.budget
    }

    fn judgement(&self) -> &Classifier {
        &self.judgement
    }

    fn worth(&mut self, failure: &Failure) -> Result<Duration, Denial> {
        let same = failure.class.same();
        let is_used_up = || self.own.as_ref().is_some_and(Run::has_repeated_silence);
        if !failure.is_worth_repeating() || (same == RetrySame::Once && is_used_up()) {
            return Err(Denial::Class);
        }
        if failure.class == FailureClass::Overloaded && self.has_others() {
            // It is left alone where somebody else can serve.
            return Err(Denial::Class);
        }
        match failure.retry_after {
            // Waited exactly, or not at all; never earlier than asked.
            Some(asked) if asked > self.budget.settings().max_retry_after => {
                Err(Denial::RetryAfter)
            }
            Some(asked) => Ok(asked),
            None => Ok(self.wait(same == RetrySame::Slowly)),
        }
    }

    fn left(&mut self, _: &Failure) -> Result<(), Denial> {
        let tried = self.own.as_ref().map_or(0, Run::tries_of_candidate);
        if self.left == 0 || tried >= self.most {
            Err(Denial::Spent)
        } else {
            Ok(())
        }
    }

    fn spend(
        &mut self,
        failure: &Failure,
        verdict: ErrorAllowance,
    ) -> Result<Option<Permit<'static>>, Denial> {
        match verdict {
            // In a row are those that reached the harness.
            ErrorAllowance::Within | ErrorAllowance::RowSpent => {}
            ErrorAllowance::KeySpent | ErrorAllowance::BothSpent => return Err(Denial::Key),
            ErrorAllowance::RunSpent => return Err(Denial::Run),
        }
        let grant = self.budget.withdraw(self.subject());
        let grant = grant.ok_or(Denial::Bucket)?.into_owned();
        if let (RetrySame::Once, Some(own)) = (failure.class.same(), &self.own) {
            own.repeat_silence();
        }
        // Also for a try that the service then is not ready for.
        self.left = self.left.saturating_sub(1);
        Ok(Some(grant))
    }

    fn key(&self, failure: &Failure) -> ErrorKey {
        let subject = self.subject().or_else(|| self.prompt()?.model());
        ErrorKey::new(subject.unwrap_or_default(), words(failure))
    }

    fn release(&mut self) {
        self.asked = None;
    }
}

/// How often the caller's own client has sent this request before. It can lower
/// what is repeated here, and raise nothing.
fn repeated(headers: &HeaderMap) -> u32 {
    let count = headers.get("x-stainless-retry-count");
    let count = count.and_then(|count| count.to_str().ok()?.trim().parse().ok());
    count.unwrap_or(0)
}
