//! Ends a run that makes the same tool calls again and again.
//!
//! An agent that polls a job which never finishes, or tries the same edit again and again, looks
//! busy: every step is quick, every answer is good, and the bill grows until a person notices. No
//! clock detects the loop, because the run makes progress all the time. The requests show the loop:
//! they carry the calls that the model made, and their results.
//!
//! # What is counted
//!
//! An action is a tool call, with its result if that is known. Two calls are the same if they have
//! the same name and the same arguments, in any order of the keys. Two results of a history are the
//! same if they differ only in [ids, times and durations](#equal-results), unless the layer compares
//! [exact results](LoopGuardLayer::exact_results). The layer compares the run's last 30 actions, or
//! more if a limit is larger or a tool [polls](LoopGuardLayer::polls):
//!
//! | pattern | notice to observers | end of the run |
//! |---|---|---|
//! | the same call with the same result; other calls may stand between | at every 10th call | at the 20th call |
//! | two calls in turn, each with its earlier result | at every 10th call | at the 20th call |
//! | up to four calls in any order, each with its result at least twice | at every 10th call | at the 30th call |
//! | calls of undeclared tools | none | at the 10th call |
//! | the same call in a row, with any results | at every 10th call | at the 30th call |
//!
//! A different result restarts the count of the same call with the same result, and that of two
//! calls in turn. A result that the last calls did not have restarts the count of up to four calls.
//! A call in a history without its result, and a refused tool, are not actions, and change at most
//! the count of undeclared tools. A user's message after a finished answer restarts all counts,
//! unless the request has nothing in common with the run's earlier requests.
//!
//! A tool counts as undeclared only if both of the last two requests declare tools, and neither of
//! them declares this one.
//!
//! If a request brings a loop to its limit, the run ends as
//! [`LoopDetected`](crate::TerminalReason::LoopDetected), and the inner service does not get that
//! request. The notice is a [`RunNotice::Loop`](crate::RunNotice::Loop). Actions also count for the
//! [signs of being stuck](crate::Run::end_when_stuck).
//!
//! The layer reads the requests and answers of OpenAI's chat and Responses APIs and of Anthropic's
//! messages API. It reads answers, because requests with `previous_response_id` carry results
//! without the calls. It counts nothing in a request that is not JSON, nor in a compressed request
//! or answer.
//!
//! In a request that repeats the run's history unchanged the layer reads only the messages after
//! it. If that history was changed, the layer counts only the calls after the last call with an id
//! that it knows, or, if it knows none, after the user's last message.
//!
//! Of one request at most the last 512 calls, results and messages count, and each pattern causes
//! at most one notice of each [`LoopVerdict`](crate::LoopVerdict).
//!
//! Tools that run in this process can [name their arguments](crate::tool::Tool::arguments); then
//! the run counts their calls without a history. Such a run ends by the limits of a layer that one
//! of its model calls has passed, unless the layer is in shadow mode, or by
//! [`Run::end_when_looping`]. Without such limits observers get notices, and the run goes on.
//!
//! # Equal results
//!
//! Of a result in a history these parts do not count, unless the layer compares
//! [exact results](LoopGuardLayer::exact_results):
//!
//! - In the first 8 KiB of each text, and in numbers: words with letters and digits, numbers of ten
//!   or more characters, numbers with a unit of time, times such as `10:31:07`, ids with a known
//!   prefix, letter case and white space. A shorter number, such as a page, a percentage or an exit
//!   code, counts.
//! - In its JSON, at any depth, and also in a text that is JSON: a number, or a time of RFC 3339,
//!   under a key for a duration, a process or a time. The last word of the key decides:
//!   `duration`, `elapsed`, `took`, `latency`, `uptime`, `runtime`, `walltime`; a unit such as `ms`
//!   or `seconds`; `pid`, `ppid`, `pgid`, `tid`, `process_id`, `thread_id`; `time`, `timestamp`,
//!   `ts`, `datetime`, `date`, `atime`, `mtime`, `ctime`; and `at` behind another word. So
//!   `wallTime`, `duration_ms`, `Process-ID` and `startedAt` are such keys, and `exit_code`,
//!   `count`, `times` and `timeout` are none.
//! - In the lines with which Codex begins the output of a command: the numbers under such names, as
//!   in `Wall time: 0.1 seconds`, and the `Chunk ID`.
//!
//! # Which history
//!
//! The history that counts is that of the run, over all its requests: see
//! [`RunLayer`](crate::RunLayer). In the first request of a run only the part after the user's last
//! message counts, since the part before may belong to another run. A request that names no run, by
//! an id or by a `Run` in its extensions, is always the first of its run.
//!
//! # Order
//!
//! This layer belongs outside of [`ModelFallbackLayer`](crate::ModelFallbackLayer) and
//! [`RetryBudgetLayer`](crate::RetryBudgetLayer), so that it reads each request once, and not once
//! per attempt. Inside of these layers it counts the same. The layer belongs inside of
//! [`RunLayer`](crate::RunLayer): further out no id is known, and each request would be the first
//! of its run. The inner service must be `Clone`, and takes a [`ReplayBody`].
//!
//! If a request passes two layers of this kind, its actions count once. Of two limits of layers in
//! the same mode, shadow or not, the smaller holds.
//!
//! # Cancel safety
//!
//! Dropping the future or the body drops the inner one. If this layer opened a run or a call for
//! the request, or was the first layer to get a call that the program attached, a drop before the
//! answer is complete also ends that node as aborted. The counts stay.
//!
//! # Panics
//!
//! A pending poll of a call with a deadline panics outside of a tokio runtime with its timer
//! enabled.
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
//! A layer with other limits, in shadow mode, which only reports the runs that it would end:
//!
//! ```
//! let layer = tower_agent::LoopGuardLayer::new().stop(15).any_tool(0).observe();
//! ```

use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    body::{MAX_BODY, ReplayBody},
    error::BoxError,
    llm::{AnswerReader, History, is_plain, names_events, names_json},
    run::{LoopLimits, Run},
    supervise::{
        BufferedCall, Claim, LayerHooks, LayerSettings, Observer, RequestReader, SupervisedBody,
        SupervisedFuture, dialect_of,
    },
};

/// Ends a run that makes the same tool calls again and again: see the [module](self).
#[derive(Clone, Debug)]
pub struct LoopGuardLayer {
    limits: LoopLimits,
    polls: Option<Arc<[Box<str>]>>,
    counts: bool,
    exact: bool,
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
    /// Observers get a notice at every 10th call of a pattern, except for calls of undeclared
    /// tools. The run ends at the 20th same call with the same result, or the 20th of two calls in
    /// turn; at the 10th call of undeclared tools; and at the 30th same call in a row, or the 30th
    /// of up to four calls without a new result.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limits: LoopLimits::DEFAULT,
            polls: None,
            counts: true,
            exact: false,
            ends: true,
            max_body: MAX_BODY,
        }
    }

    /// Makes a layer that counts nothing, and only buffers request bodies.
    #[must_use]
    pub const fn off() -> Self {
        let mut layer = Self::new();
        layer.counts = false;
        layer
    }

    pub(crate) const fn is_off(&self) -> bool {
        !self.counts
    }

    /// The number of calls of a pattern at which observers get a notice; 10 by default.
    ///
    /// The number holds for each pattern except calls of undeclared tools, and the first call of a
    /// pattern counts. Each further multiple of the number causes another notice. With 0, observers
    /// get a notice only at a limit that ends the run, or would in shadow mode. In every limit of
    /// this layer a number above 1000 counts as 1000.
    #[must_use]
    pub const fn warn(mut self, times: u32) -> Self {
        self.limits.warn = LoopLimits::limit(times);
        self
    }

    /// The number of same calls with the same result that ends the run; 20 by default.
    ///
    /// The number also holds for two calls in turn, each with its earlier result; both calls count.
    /// With 0 these patterns do not end the run.
    #[must_use]
    pub const fn stop(mut self, times: u32) -> Self {
        self.limits.stop = LoopLimits::limit(times);
        self
    }

    /// The number of calls of undeclared tools that ends the run; 10 by default.
    ///
    /// Calls of undeclared tools are counted among the run's last 30 calls, or more if a limit is
    /// larger or a tool [polls](Self::polls). With 0 they do not end the run.
    #[must_use]
    pub const fn unknown_tool(mut self, calls: u32) -> Self {
        self.limits.unknown_tool = LoopLimits::limit(calls);
        self
    }

    /// The number of same calls in a row, with any results, that ends the run; 30 by default.
    ///
    /// The number also holds for up to four calls, in any order, without a new result. With 0
    /// neither pattern ends the run.
    #[must_use]
    pub const fn any_tool(mut self, calls: u32) -> Self {
        self.limits.any_tool = LoopLimits::limit(calls);
        self
    }

    /// Names the tools that poll, such as one that waits for a process; none by default.
    ///
    /// A tool that polls returns the same result many times before it returns another. A loop with
    /// such a tool is reported and ends the run at three times as many calls: with the default
    /// limits observers get the first notice at the 30th same call with the same result, and the
    /// run ends at the 60th. Another result of the same call restarts the count of that call. Calls
    /// of the tool are not a sign of being [stuck](crate::Run::end_when_stuck). The program may
    /// name further tools with [`Run::polls`].
    #[must_use]
    pub fn polls<T: Into<Box<str>>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.polls = Some(tools.into_iter().map(Into::into).collect());
        self
    }

    /// Compares results as written, apart from JSON's order of keys and white space.
    ///
    /// By default a result that differs only in ids, times and durations is not new: see
    /// [equal results](self#equal-results).
    #[must_use]
    pub const fn exact_results(mut self) -> Self {
        self.exact = true;
        self
    }

    /// Turns on shadow mode: where the run would end, observers get a notice instead.
    #[must_use]
    pub const fn observe(mut self) -> Self {
        self.ends = false;
        self
    }

    /// The largest request body that is buffered, in bytes; 32 MiB by default.
    ///
    /// A larger body is an error, a [`LengthLimitError`](http_body_util::LengthLimitError), unless
    /// the body is a [`ReplayBody`] already.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }
}

impl<S> Layer<S> for LoopGuardLayer {
    type Service = LoopGuard<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let layer = self.clone();
        LoopGuard { inner, layer }
    }
}

/// The service of a [`LoopGuardLayer`].
#[derive(Clone, Debug)]
pub struct LoopGuard<S> {
    inner: S,
    layer: LoopGuardLayer,
}

/// The response future of [`LoopGuard`].
pub type LoopGuardFuture<S, Q> = SupervisedFuture<BufferedCall<S, Q, HistoryReader>>;

/// The response body of [`LoopGuard`].
pub type LoopGuardBody<B> = SupervisedBody<B>;

impl<S, Q, B> Service<Request<Q>> for LoopGuard<S>
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error: Into<BoxError>> + Clone,
    Q: Body<Data = Bytes, Error: Into<BoxError>> + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Response = Response<LoopGuardBody<B>>;
    type Error = BoxError;
    type Future = LoopGuardFuture<S, Q>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Q>) -> Self::Future {
        let layer = &self.layer;
        let entry = Claim::of_call(&mut request);
        let run = entry.run.clone();
        let settings = if layer.counts {
            if let Some(polls) = &layer.polls {
                run.actions().add_polls(polls);
            }
            run.actions().limit(layer.limits, layer.ends);
            let answer = AnswerReader::nothing();
            LayerSettings::hooks(CallsReader { answer })
                .reading()
                .frames()
        } else {
            LayerSettings::passive()
        };
        let reader = HistoryReader {
            run,
            counts: layer.counts,
            exact: layer.exact,
        };
        let max_body = layer.max_body;
        // The service that was polled ready takes the call; a clone of it stays for later calls.
        let next = self.inner.clone();
        let service = mem::replace(&mut self.inner, next);
        SupervisedFuture::new(entry, settings, request, |request| {
            BufferedCall::new(service, reader, request, max_body)
        })
    }
}

/// Reads the tool calls in an answer, so that the run can match the results of the next request.
#[derive(Debug)]
struct CallsReader {
    answer: AnswerReader,
}

impl CallsReader {
    fn finish(&mut self, found: &Run) {
        found.actions().expect(self.answer.finish());
    }
}

impl LayerHooks for CallsReader {
    fn head(&mut self, _: &Run, _: StatusCode, headers: &mut HeaderMap) {
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
    fn frame(&mut self, found: &Run, data: Option<&Bytes>, observer: Option<&Observer>) {
        if let Some(data) = data {
            self.answer.push(data);
        }
        // Record the calls here and not only at the drop: a caller that has the last bytes may send
        // its next request before it drops the body.
        if observer.is_some_and(Observer::is_complete) {
            self.finish(found);
        }
    }

    fn release(&mut self, found: &Run) {
        self.finish(found);
    }
}

/// Records the tool calls and results in a request on its run.
#[derive(Debug)]
#[doc(hidden)]
pub struct HistoryReader {
    run: Run,
    counts: bool,
    exact: bool,
}

impl<A> RequestReader<A> for HistoryReader {
    type Answer = A;

    fn run(&self) -> &Run {
        &self.run
    }

    /// Records the calls and results, and may so end the run; `BufferedCall` then checks for that
    /// end.
    fn read(&self, request: &Request<ReplayBody>) -> Option<A> {
        if !self.counts {
            return None;
        }
        let body = request.body().gathered();
        let dialect = dialect_of(request);
        if let Some(history) = History::read(&dialect, &body, &self.run.actions().places()) {
            self.run.actions().read_history(&history, self.exact);
        }
        None
    }

    fn pass(answer: A) -> A {
        answer
    }
}
