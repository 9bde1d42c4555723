//! Ends a run whose tool calls go in circles.
//!
//! An agent that polls a job which never finishes, or tries the same edit again
//! and again, looks busy: every step is quick, every answer is good, and the bill
//! grows until somebody looks. No clock sees it, because something happens all the
//! time. What it does can be seen, though: each request carries the calls that the
//! model made and what came of them.
//!
//! # What is counted
//!
//! An action is a call of a tool whose result is there. Two calls are the same if
//! they have the same name and arguments, whatever the order of the keys. Of the
//! run's last 30 actions:
//!
//! | pattern | told | ends the run |
//! |---|---|---|
//! | the same call with the same result; others may stand between | every 10 | at 20 |
//! | two calls in turn, each with its result of before | every 10 | at 20 |
//! | calls of tools that were not declared when they were made, if any were | | at 10 |
//! | the same call in a row, whatever came of it | every 10 | at 30 |
//!
//! Another result is a change, and begins anew; so does a user who answers a turn
//! that the model had finished, and not one who speaks between two calls. A call
//! that was refused is no action, and changes nothing. The run ends as
//! [`LoopDetected`](crate::TerminalReason::LoopDetected), before the request is
//! sent on; what is told is a [`RunNotice::Loop`](crate::RunNotice::Loop). Actions count
//! for the [signs of being stuck](crate::Run::end_when_stuck) too.
//!
//! Read are the requests and answers of OpenAI's chat and Responses and of
//! Anthropic's messages. A request is read from where the last one of the run
//! ended; one whose history was changed since is read whole, and what is known by
//! its id does not count again. Answers matter where requests do not repeat what
//! they continue (`previous_response_id`). What is not JSON, or compressed, is not
//! read, and passes.
//!
//! Of one request no more than the last 512 calls and results count, and each
//! pattern is told once.
//!
//! Tools that run in this process can
//! [say their arguments](crate::tool::Tool::arguments); then it works without a
//! history too. Such a run is ended by the limits of the layer that one of its model
//! calls has passed, or by [`Run::end_when_looping`];
//! else observers are told, and it goes on.
//!
//! # Whose history
//!
//! The run's, over all its requests, see [`RunLayer`](crate::RunLayer). Of the
//! first request of a run, and so of each request that belongs to none, only what
//! came after the last message of the user counts: what was before it was another
//! run.
//!
//! # Order
//!
//! Outside of [`ModelFallbackLayer`](crate::ModelFallbackLayer) and
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer), so that a request is read once
//! and its body kept once; inside of [`RunLayer`](crate::RunLayer). Elsewhere, or
//! twice, it counts the same, by the smaller limits. The inner service must be
//! `Clone`, and takes a [`ReplayBody`].
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops what is inside. What was counted stays
//! counted.
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
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_agent::{LoopGuardLayer, ReplayBody, TerminalReason};
//!
//! let service = ServiceBuilder::new()
//!     .layer(LoopGuardLayer::new().stop(3))
//!     .service(service_fn(|_: Request<ReplayBody>| async {
//!         Ok::<_, std::io::Error>(Response::new(Full::<Bytes>::default()))
//!     }));
//!
//! let turn = r#",{"role":"assistant","tool_calls":[{"id":"c","type":"function",
//!     "function":{"name":"job_status","arguments":"{\"job\":7}"}}]},
//!     {"role":"tool","tool_call_id":"c","content":"running"}"#;
//! let body = format!(
//!     r#"{{"messages":[{{"role":"user","content":"is it done?"}}{}]}}"#,
//!     turn.repeat(3),
//! );
//! let request = Request::post("/v1/chat/completions").body(Full::<Bytes>::from(body))?;
//!
//! let error = service.oneshot(request).await.unwrap_err();
//! assert_eq!(TerminalReason::find(&*error), Some(&TerminalReason::LoopDetected));
//! # Ok(())
//! # }
//! ```
//!
//! To see what it would end, before it may:
//!
//! ```
//! let layer = tower_agent::LoopGuardLayer::new().stop(15).any_tool(0).observe();
//! ```

use std::{
    mem,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    body::{MAX_BODY, ReplayBody},
    error::BoxError,
    llm::{AnswerReader, History, failure::names_json},
    run::{LoopLimits, Run},
    supervise::{
        Claim, FrameKind, Observer, Policy, ReadRequest, RequestReader, SupervisedBody,
        SupervisedFuture, dialect_of, is_plain, names_events,
    },
};

/// Ends a run whose tool calls go in circles: see the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct LoopGuardLayer {
    limits: LoopLimits,
    ends: bool,
    max_body: usize,
}

impl Default for LoopGuardLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl LoopGuardLayer {
    /// Warns at 10 and every 10 more, and stops at 20 of the same call with the same
    /// result or of two in turn, at 10 of tools that there are not, and at 30 of the
    /// same call in a row whatever came of it.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limits: LoopLimits::DEFAULT,
            ends: true,
            max_body: MAX_BODY,
        }
    }

    /// Tells observers when the same call, or two in turn, came back this often
    /// without a change, or the same call in a row with one, and after each further
    /// such number; 10 by default, 0 is
    /// never. Like every limit here it is 1000 at most.
    #[must_use]
    pub const fn warn(mut self, times: u32) -> Self {
        self.limits.warn = LoopLimits::limit(times);
        self
    }

    /// Ends the run when the same call, or two in turn, came back this often
    /// without a change; 20 by default, 0 is never.
    #[must_use]
    pub const fn stop(mut self, times: u32) -> Self {
        self.limits.stop = LoopLimits::limit(times);
        self
    }

    /// Ends the run when this many of its last 30 calls were of tools that the
    /// request does not declare; 10 by default, 0 is never.
    #[must_use]
    pub const fn unknown_tool(mut self, calls: u32) -> Self {
        self.limits.unknown_tool = LoopLimits::limit(calls);
        self
    }

    /// Ends the run when one tool was called this often in a row with the same
    /// arguments, whatever came of it; 30 by default, 0 is never.
    #[must_use]
    pub const fn any_tool(mut self, calls: u32) -> Self {
        self.limits.any_tool = LoopLimits::limit(calls);
        self
    }

    /// Ends nothing: observers are told when it would have.
    #[must_use]
    pub const fn observe(mut self) -> Self {
        self.ends = false;
        self
    }

    /// The largest request body that is kept, in bytes; a larger one is an error,
    /// a [`LengthLimitError`](http_body_util::LengthLimitError). 32 MiB by default.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }
}

impl<S> Layer<S> for LoopGuardLayer {
    type Service = LoopGuard<S>;

    fn layer(&self, inner: S) -> Self::Service {
        LoopGuard::new(inner, self.limits, self.ends, self.max_body)
    }
}

/// The service of a [`LoopGuardLayer`].
#[derive(Clone, Copy, Debug)]
pub struct LoopGuard<S> {
    inner: S,
    limits: LoopLimits,
    ends: bool,
    max_body: usize,
}

impl<S> LoopGuard<S> {
    const fn new(inner: S, limits: LoopLimits, ends: bool, max_body: usize) -> Self {
        Self {
            inner,
            limits,
            ends,
            max_body,
        }
    }
}

/// The response future of [`LoopGuard`].
pub type LoopGuardFuture<S, Q> = SupervisedFuture<ReadRequest<S, Q, HistoryReader>, CallsPolicy>;

/// The response body of [`LoopGuard`].
pub type LoopGuardBody<B> = SupervisedBody<B, CallsPolicy>;

impl<S, Q, B> Service<Request<Q>> for LoopGuard<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes> + 'static,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Response = Response<LoopGuardBody<B>>;
    type Error = BoxError;
    type Future = LoopGuardFuture<S, Q>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let entry = Claim::of_call(&mut request);
        let run = entry.run.clone();
        run.limit_loops(self.limits, self.ends);
        // The clone has not been asked whether it is ready.
        let next = self.inner.clone();
        let service = mem::replace(&mut self.inner, next);
        let max_body = self.max_body;
        SupervisedFuture::new(entry, CallsPolicy::new(), request, |request| {
            ReadRequest::new(service, HistoryReader(run), request, max_body)
        })
    }
}

/// Measures nothing; reads the tool calls of an answer.
#[derive(Debug)]
#[doc(hidden)]
pub struct CallsPolicy {
    answer: Box<AnswerReader>,
}

impl CallsPolicy {
    fn new() -> Self {
        let answer = Box::new(AnswerReader::nothing());
        Self { answer }
    }

    fn finish(&mut self, found: &Run) {
        found.expect(self.answer.finish());
    }
}

impl Policy for CallsPolicy {
    const READS: bool = true;

    fn head(&mut self, _: &Run, headers: &mut HeaderMap) {
        if !is_plain(headers) {
            return;
        }
        if names_events(headers) {
            *self.answer = AnswerReader::events();
        } else if names_json(headers) {
            *self.answer = AnswerReader::document();
        }
    }

    #[inline]
    fn data(&mut self, _: &Run, data: &Bytes) {
        self.answer.push(data);
    }

    #[inline]
    fn frame(&mut self, found: &Run, _: Option<FrameKind>, tap: Option<&Observer>) {
        // Who gets the last bytes may ask again before this body is dropped.
        if tap.is_some_and(Observer::is_complete) {
            self.finish(found);
        }
    }

    fn release(&mut self, found: &Run) {
        self.finish(found);
    }
}

/// Tells the run what its requests say of tools.
#[derive(Debug)]
#[doc(hidden)]
pub struct HistoryReader(Run);

impl<A> RequestReader<A> for HistoryReader {
    type Answer = A;

    fn run(&self) -> &Run {
        &self.0
    }

    /// The run may end for it, which is asked next.
    fn read(&self, request: &Request<ReplayBody>) -> Option<A> {
        let body = request.body().gathered();
        let dialect = dialect_of(request);
        if let Some(history) = History::read(&dialect, &body, &self.0.places()) {
            self.0.follow(&history);
        }
        None
    }

    fn pass(answer: A) -> A {
        answer
    }
}
