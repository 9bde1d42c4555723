//! Ends a run whose tool calls go in circles.
//!
//! An agent that polls a job which never finishes, or tries the same edit again and again,
//! looks busy: every step is quick, every answer is good, and the bill grows until a person
//! notices. No clock detects it, because the run makes progress all the time. The requests
//! show it: each carries the calls that the model made, and their results.
//!
//! # What is counted
//!
//! An action is a call of a tool, with its result. Two calls are the same if they have the
//! same name and arguments, in any order of the keys. Of the run's last 30 actions:
//!
//! | pattern | a notice | the end of the run |
//! |---|---|---|
//! | the same call with the same result; other calls may stand between | every 10 | at 20 |
//! | two calls in turn, each with its earlier result | every 10 | at 20 |
//! | calls of tools that the request did not declare, if it declared any | | at 10 |
//! | the same call in a row, with any results | every 10 | at 30 |
//!
//! Another result is a change, and restarts the count; so does a user's message after a
//! turn that the model had finished, but not one between two calls. A refused call is no
//! action, and changes nothing. The run ends as
//! [`LoopDetected`](crate::TerminalReason::LoopDetected), before the layer sends the request
//! on; the notice is a [`RunNotice::Loop`](crate::RunNotice::Loop). Actions count for the
//! [signs of being stuck](crate::Run::end_when_stuck) too.
//!
//! The layer reads the requests and answers of OpenAI's chat and Responses APIs and of
//! Anthropic's messages API. It reads a request from where the last one of the run ended. A
//! request with a changed history is read whole, and calls with a known id do not count
//! again. Answers matter if requests do not repeat what they continue
//! (`previous_response_id`). A body that is not JSON, or is compressed, passes unread.
//!
//! Of one request at most the last 512 calls and results count, and each pattern causes one
//! notice.
//!
//! Tools that run in this process can [name their arguments](crate::tool::Tool::arguments);
//! then the layer needs no history. Such a run ends by the limits of a layer that one of
//! its model calls has passed, or by [`Run::end_when_looping`]; without either, observers
//! get the notice, and the run goes on.
//!
//! # Which history
//!
//! The history that counts is that of the run, over all its requests: see
//! [`RunLayer`](crate::RunLayer). In the first request of a run, and so in each request
//! that belongs to none, only the part after the user's last message counts: the part
//! before belongs to another run.
//!
//! # Order
//!
//! This layer belongs outside of [`ModelFallbackLayer`](crate::ModelFallbackLayer) and
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer), so that a request is read once and its
//! body buffered once; inside of [`RunLayer`](crate::RunLayer). In another place, or twice,
//! it counts the same, by the smaller limits. The inner service must be `Clone`, and takes a
//! [`ReplayBody`].
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one. The counts stay.
//!
//! # Panics
//!
//! A pending poll panics outside of a tokio runtime with its timer enabled.
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
//! Shows first which runs the layer would end:
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
    llm::{AnswerReader, History, is_plain, names_events, names_json},
    run::{LoopLimits, Run},
    supervise::{
        Claim, Hooks, Observer, ReadRequest, RequestReader, Settings, SupervisedBody,
        SupervisedFuture, dialect_of,
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
    /// Makes a layer with the default limits: see the [module](self#what-is-counted).
    ///
    /// The layer gives a notice at every 10 repetitions; it ends the run at 20 of the same
    /// call with the same result or of two in turn, at 10 of undeclared tools, and at 30
    /// of the same call in a row.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limits: LoopLimits::DEFAULT,
            ends: true,
            max_body: MAX_BODY,
        }
    }

    /// The number of repetitions after which observers get a notice; 10 by default.
    ///
    /// The setting counts the same call, or two in turn, without a change, and the same
    /// call in a row with any results. Each further multiple of the number causes another
    /// notice. A number of 0 means never. Like every limit of this layer the number is
    /// 1000 at most.
    #[must_use]
    pub const fn warn(mut self, times: u32) -> Self {
        self.limits.warn = LoopLimits::limit(times);
        self
    }

    /// The number of repetitions without a change that ends the run; 20 by default.
    ///
    /// The setting counts the same call, or two in turn. A number of 0 means never.
    #[must_use]
    pub const fn stop(mut self, times: u32) -> Self {
        self.limits.stop = LoopLimits::limit(times);
        self
    }

    /// The number of calls of undeclared tools that ends the run; 10 by default.
    ///
    /// The setting counts the run's last 30 calls. A number of 0 means never.
    #[must_use]
    pub const fn unknown_tool(mut self, calls: u32) -> Self {
        self.limits.unknown_tool = LoopLimits::limit(calls);
        self
    }

    /// The number of same calls in a row, with any results, that ends the run; 30 by default.
    ///
    /// A number of 0 means never.
    #[must_use]
    pub const fn any_tool(mut self, calls: u32) -> Self {
        self.limits.any_tool = LoopLimits::limit(calls);
        self
    }

    /// Shadow mode: observers get a notice in place of the end of the run.
    #[must_use]
    pub const fn observe(mut self) -> Self {
        self.ends = false;
        self
    }

    /// The largest request body that is buffered, in bytes; 32 MiB by default.
    ///
    /// A larger body is an error, a [`LengthLimitError`](http_body_util::LengthLimitError).
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }
}

impl<S> Layer<S> for LoopGuardLayer {
    type Service = LoopGuard<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = *self;
        LoopGuard { inner, layer }
    }
}

/// The service of a [`LoopGuardLayer`].
#[derive(Clone, Copy, Debug)]
pub struct LoopGuard<S> {
    inner: S,
    layer: LoopGuardLayer,
}

/// The response future of [`LoopGuard`].
pub type LoopGuardFuture<S, Q> = SupervisedFuture<ReadRequest<S, Q, HistoryReader>>;

/// The response body of [`LoopGuard`].
pub type LoopGuardBody<B> = SupervisedBody<B>;

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
        let LoopGuardLayer {
            limits,
            ends,
            max_body,
        } = self.layer;
        let entry = Claim::of_call(&mut request);
        let run = entry.run.clone();
        run.limit_loops(limits, ends);
        // The caller keeps a clone, which is not ready; the call takes the ready service.
        let next = self.inner.clone();
        let service = mem::replace(&mut self.inner, next);
        let answer = AnswerReader::nothing();
        let settings = Settings::hooks(CallsReader { answer }).reading();
        SupervisedFuture::new(entry, settings, request, |request| {
            ReadRequest::new(service, HistoryReader(run), request, max_body)
        })
    }
}

/// Reads the tool calls of an answer, and records them on the call.
#[derive(Debug)]
struct CallsReader {
    answer: AnswerReader,
}

impl CallsReader {
    fn finish(&mut self, found: &Run) {
        found.expect(self.answer.finish());
    }
}

impl Hooks for CallsReader {
    fn head(&mut self, _: &Run, headers: &mut HeaderMap) {
        if !is_plain(headers) {
            return;
        }
        if names_events(headers) {
            self.answer = AnswerReader::events();
        } else if names_json(headers) {
            self.answer = AnswerReader::document();
        }
    }

    #[inline]
    fn data(&mut self, _: &Run, data: &Bytes) {
        self.answer.push(data);
    }

    #[inline]
    fn frame(&mut self, found: &Run, tap: Option<&Observer>) {
        // The calls are recorded before the drop: a caller with the last bytes may send its next
        // request first.
        if tap.is_some_and(Observer::is_complete) {
            self.finish(found);
        }
    }

    fn release(&mut self, found: &Run) {
        self.finish(found);
    }
}

/// The reader that records the tool calls and results of a request on its run.
#[derive(Debug)]
#[doc(hidden)]
pub struct HistoryReader(Run);

impl<A> RequestReader<A> for HistoryReader {
    type Answer = A;

    fn run(&self) -> &Run {
        &self.0
    }

    /// May end the run; `ReadRequest` looks for an end next.
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
