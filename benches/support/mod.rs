//! What the benches measure: scripted bodies and services that do nothing.

#![allow(dead_code, reason = "each bench uses its part")]

use std::{
    cell::Cell,
    convert::Infallible,
    future::{Future, Ready, ready},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use http_body_util::Full;
use tokio::runtime::{Builder, Runtime};
use tower::{Service, ServiceBuilder};
use tower_agent::{
    AgentStack, BoxError, Candidate, ClientDisconnectLayer, HardCeilingLayer, ModelFallbackLayer,
    ReplayBody, RetryBudget, RetryBudgetLayer, RunLayer, RunRegistry, StepTimeoutLayer,
    TerminalResponseLayer,
};

/// Frames a body, and so iterations a measured loop, has.
pub(crate) const FRAMES: usize = 1024;

/// The limit of every timed layer: none passes in a bench.
pub(crate) const LIMIT: Duration = Duration::from_secs(600);

/// A frame of 200 bytes that is no event.
pub(crate) const TOKEN: &[u8] =
    b"a frame of 200 bytes that is not an event: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\
xxxxxxxxxxxxxxxxxxxxxxxxx";

/// A frame with one content event of OpenAI's chat.
pub(crate) const EVENT: &[u8] = b"data: {\"id\":\"chatcmpl-9f8a7b6c5d4e3f2a\",\"object\":\"chat.completion.chunk\",\
\"created\":1760000000,\"model\":\"gpt-test\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" hello\"},\
\"logprobs\":null,\"finish_reason\":null}]}\n\n";

/// A body of equal frames, each ready at once or after one `Pending`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frames {
    frame: Bytes,
    left: usize,
    pending: bool,
    waited: bool,
}

impl Frames {
    pub(crate) fn ready(frame: &'static [u8]) -> Self {
        Self {
            frame: Bytes::from_static(frame),
            left: FRAMES,
            pending: false,
            waited: false,
        }
    }

    pub(crate) fn pending(frame: &'static [u8]) -> Self {
        Self {
            pending: true,
            ..Self::ready(frame)
        }
    }

    /// Sets the number of frames.
    pub(crate) fn of(mut self, frames: usize) -> Self {
        self.left = frames;
        self
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if self.pending && !std::mem::replace(&mut self.waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waited = false;
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(self.frame.clone()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }
}

/// Where an upstream puts the request that it was called with, so that the next
/// iteration need not build one.
pub(crate) type Slot = Rc<Cell<Option<Request<()>>>>;

/// Answers with a body, at once or after one `Pending`.
#[derive(Clone)]
pub(crate) struct SlotUpstream<B> {
    pub(crate) slot: Slot,
    pub(crate) body: B,
    pub(crate) events: bool,
    pub(crate) pending: bool,
}

#[derive(Debug)]
pub(crate) struct SlotFuture<B> {
    body: Option<B>,
    events: bool,
    pending: bool,
}

/// Answers every request at once with a clone of a body, and keeps no request.
#[derive(Clone)]
pub(crate) struct Answers<B> {
    pub(crate) body: B,
    pub(crate) events: bool,
}

impl<B: Clone, Q> Service<Request<Q>> for Answers<B> {
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Ready<Result<Response<B>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Q>) -> Self::Future {
        ready(Ok(response(self.body.clone(), self.events)))
    }
}

/// A response with this body, which is an event stream if `events` says so.
fn response<B>(body: B, events: bool) -> Response<B> {
    let mut response = Response::new(body);
    if events {
        let events = HeaderValue::from_static("text/event-stream");
        response.headers_mut().insert(CONTENT_TYPE, events);
    }
    response
}

impl<B: Body + Clone + Unpin> Service<Request<()>> for SlotUpstream<B> {
    type Response = Response<B>;
    type Error = Infallible;
    type Future = SlotFuture<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> SlotFuture<B> {
        self.slot.set(Some(request));
        SlotFuture {
            body: Some(self.body.clone()),
            events: self.events,
            pending: self.pending,
        }
    }
}

impl<B: Unpin> Future for SlotFuture<B> {
    type Output = Result<Response<B>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if std::mem::take(&mut self.pending) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let body = self.body.take().expect("polled once after it was ready");
        Poll::Ready(Ok(response(body, self.events)))
    }
}

/// Reads all frames of a body as a task would that is woken at once, without a
/// scheduler's own cost; answers its bytes. The end is not asked for.
pub(crate) fn drain<B>(body: B) -> usize
where
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let mut body = std::pin::pin!(body);
    let mut cx = Context::from_waker(Waker::noop());
    let mut bytes = 0;
    let mut frames = 0;
    while frames < FRAMES {
        if let Poll::Ready(frame) = body.as_mut().poll_frame(&mut cx) {
            let frame = frame.expect("a frame is left").expect("no limit passes");
            bytes += frame.data_ref().map_or(0, Bytes::len);
            frames += 1;
        }
    }
    bytes
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
}

pub(crate) fn request(path: &'static str) -> Request<()> {
    Request::builder().uri(path).body(()).expect("a request")
}

/// Eight headers and 200 bytes, the first candidate's model asked for.
pub(crate) fn prompt() -> Request<Full<Bytes>> {
    let mut body = br#"{"model":"large","messages":[{"role":"user","content":""#.to_vec();
    body.resize(200 - 4, b'x');
    body.extend_from_slice(br#""}]}"#);
    assert_eq!(body.len(), 200);
    let mut request = Request::post("/v1/chat/completions")
        .body(Full::from(body))
        .unwrap();
    for (name, value) in [
        ("host", "api.example.com"),
        ("content-type", "application/json"),
        ("content-length", "200"),
        ("accept", "application/json"),
        ("authorization", "Bearer secret"),
        ("user-agent", "bench"),
        ("x-stainless-lang", "python"),
        ("x-session-id", "s"),
    ] {
        let name = HeaderName::from_static(name);
        let value = HeaderValue::from_static(value);
        request.headers_mut().insert(name, value);
    }
    request
}

/// The five named layers, as T4 counts them.
pub(crate) fn five_layers<S, B>(
    upstream: S,
) -> impl Service<Request<Full<Bytes>>, Response = Response<impl Body>, Error = BoxError>
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Data = Bytes, Error = Infallible> + Unpin,
{
    let budget = RetryBudget::new();
    let candidates = [Candidate::new("large"), Candidate::new("small")];
    ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(LIMIT))
        .layer(StepTimeoutLayer::new(LIMIT))
        .layer(ModelFallbackLayer::new(candidates).budget(budget.clone()))
        .layer(RetryBudgetLayer::new(budget))
        .service(upstream)
}

/// Polls a future that needs no waker until it is ready.
pub(crate) fn ready_after<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

/// The layers of a gateway, from the caller to the upstream: two clocks for the call, and two for
/// each attempt.
pub(crate) fn full_stack<S, B>(
    upstream: S,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = Response<impl Body<Data = Bytes, Error = BoxError>>,
    Error = Infallible,
> + Clone
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Data = Bytes, Error = Infallible> + Unpin,
{
    let budget = RetryBudget::new();
    let candidates = [Candidate::new("large"), Candidate::new("small")];
    ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(LIMIT))
        .layer(StepTimeoutLayer::new(LIMIT))
        .layer(ModelFallbackLayer::new(candidates).budget(budget.clone()))
        .layer(RetryBudgetLayer::new(budget))
        .layer(HardCeilingLayer::new(LIMIT))
        .layer(StepTimeoutLayer::new(LIMIT))
        .service(upstream)
}

/// The layers of [`full_stack`] as `AgentStack` makes them, with a pump in place of the disconnects.
pub(crate) fn server_stack<S, B>(
    upstream: S,
) -> impl Service<
    Request<Full<Bytes>>,
    Response = Response<impl Body<Data = Bytes, Error = BoxError>>,
    Error = Infallible,
> + Clone
where
    S: Service<Request<ReplayBody>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    AgentStack::server(&RunRegistry::new())
        .ceiling(LIMIT)
        .run_step(LIMIT)
        .fallback([Candidate::new("large"), Candidate::new("small")])
        .retry(RetryBudget::new())
        .attempt_ceiling(LIMIT)
        .step(LIMIT)
        .service(upstream)
}
