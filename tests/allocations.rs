//! What a frame and a call allocate: counted, not timed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    convert::Infallible,
    future::Ready,
    hint::black_box,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use allocation_counter::measure;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full};
use tower::{
    Layer, Service, ServiceBuilder, layer::util::Identity, service_fn, util::BoxCloneSyncService,
};
use tower_agent::{
    Candidate, ClientDisconnectLayer, HardCeilingLayer, HealthGateLayer, LoopGuardLayer,
    ModelFallbackLayer, PumpLayer, ReplayBody, RetryBudget, RetryBudgetLayer, Run,
    StepTimeoutLayer, TerminalReason, TerminalResponseLayer, TurnCapLayer,
    layers::hard_ceiling::HardCeiling,
};

const LIMIT: Duration = Duration::from_secs(600);
const FRAMES: usize = 100;

const TOKEN: &[u8] = b"data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\
    \"choices\":[{\"index\":0,\"delta\":{\"content\":\" hello\"},\"finish_reason\":null}]}\n\n";

/// The same frame over and over; with `pending`, each after one `Pending`.
#[derive(Clone, Copy)]
struct Tokens {
    pending: bool,
    waited: bool,
}

impl Body for Tokens {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let pending = self.pending;
        if pending && !std::mem::replace(&mut self.waited, true) {
            return Poll::Pending;
        }
        self.waited = false;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(TOKEN)))))
    }
}

/// Allocations while `FRAMES` frames go through both clocks, once warm, for a
/// caller who waits for each so many seconds.
fn per_frames(content_type: &'static str, pending: bool, read_timeout: &'static str) -> u64 {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = rt.enter();
    let mut service = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(LIMIT).caller_deadline(true))
        .layer(StepTimeoutLayer::new(LIMIT))
        .service(service_fn(move |_: Request<()>| async move {
            let waited = false;
            let mut answer = Response::new(Tokens { pending, waited });
            let content_type = HeaderValue::from_static(content_type);
            answer
                .headers_mut()
                .insert(header::CONTENT_TYPE, content_type);
            Ok::<_, Infallible>(answer)
        }));
    let request = Request::post("/v1/chat/completions");
    let request = request.header("x-stainless-read-timeout", read_timeout);
    let request = request.body(()).unwrap();
    let body = rt.block_on(service.call(request)).unwrap().into_body();
    let mut body = pin!(body);
    let mut cx = Context::from_waker(Waker::noop());
    let mut read = |frames: usize| {
        let mut left = frames;
        while left > 0 {
            if let Poll::Ready(frame) = body.as_mut().poll_frame(&mut cx) {
                black_box(frame.unwrap().unwrap());
                left -= 1;
            }
        }
    };
    // The first Pending makes the timer, the first event the judge's buffers.
    read(2);
    measure(|| read(FRAMES)).count_total
}

/// covers: A14
#[test]
fn a_frame_allocates_nothing() {
    for content_type in ["application/octet-stream", "text/event-stream"] {
        for pending in [false, true] {
            for read_timeout in ["0", "600"] {
                let allocations = per_frames(content_type, pending, read_timeout);
                let case = format!("{content_type}, pending: {pending}, {read_timeout}");
                assert_eq!(allocations, 0, "{case}");
            }
        }
    }
}

/// Allocations of one call on an open run, whose answer is ready at once or
/// after one `Pending`; the bare call allocates nothing.
fn per_call(pending: bool) -> u64 {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = rt.enter();
    let mut service = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(LIMIT))
        .layer(StepTimeoutLayer::new(LIMIT))
        .service(service_fn(move |_: Request<()>| {
            let mut waits = pending;
            std::future::poll_fn(move |_| {
                if std::mem::take(&mut waits) {
                    return Poll::Pending;
                }
                Poll::Ready(Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())))
            })
        }));
    let run = Run::open();
    let mut call = || {
        let mut request = Request::post("/v1/chat/completions").body(()).unwrap();
        request.extensions_mut().insert(run.clone());
        let mut cx = Context::from_waker(Waker::noop());
        let mut allocations = 0;
        let counted = measure(|| {
            let mut future = pin!(service.call(request));
            if pending {
                assert!(future.as_mut().poll(&mut cx).is_pending());
            }
            assert!(future.as_mut().poll(&mut cx).is_ready());
        });
        allocations += counted.count_total;
        allocations
    };
    // The first call makes the run's own tables.
    call();
    call()
}

#[test]
fn a_call_that_is_ready_allocates_nothing() {
    assert_eq!(per_call(false), 0);
}

#[test]
fn a_call_that_waits_allocates_its_timer_alone() {
    assert_eq!(per_call(true), 1);
}

/// Allocations of one ready call through all five layers, its run made for it,
/// over those of the bare call.
fn per_stack() -> u64 {
    let upstream = || {
        service_fn(|_: Request<ReplayBody>| async {
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        })
    };
    let budget = RetryBudget::new();
    let candidates = [Candidate::new("large"), Candidate::new("small")];
    let mut service = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(LIMIT))
        .layer(StepTimeoutLayer::new(LIMIT))
        .layer(ModelFallbackLayer::new(candidates).budget(budget.clone()))
        .layer(RetryBudgetLayer::new(budget))
        .service(upstream());
    let mut call = || {
        let mut body = br#"{"model":"large","messages":[{"role":"user","content":""#.to_vec();
        body.resize(196, b'x');
        body.extend_from_slice(br#""}]}"#);
        let mut request = Request::post("/v1/chat/completions")
            .body(Full::from(body))
            .unwrap();
        for (name, value) in [
            ("host", "api.example.com"),
            ("content-type", "application/json"),
            ("content-length", "200"),
            ("accept", "application/json"),
            ("authorization", "Bearer secret"),
            ("user-agent", "test"),
            ("x-stainless-lang", "python"),
            ("x-session-id", "s"),
        ] {
            let value = HeaderValue::from_static(value);
            request.headers_mut().insert(name, value);
        }
        let mut cx = Context::from_waker(Waker::noop());
        let counted = measure(|| {
            let mut future = pin!(service.call(request));
            let answer = future.as_mut().poll(&mut cx);
            assert!(matches!(answer, Poll::Ready(Ok(_))));
        });
        counted.count_total
    };
    call();
    call()
}

/// Allocations of the end of a call of many, in the middle of its stream, and then of its
/// run: without a subscriber, nothing is logged.
fn per_end() -> [u64; 2] {
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = rt.enter();
    let mut service = StepTimeoutLayer::new(LIMIT).layer(Streaming { pending: false });
    let run = Run::open();
    let mut ended = || {
        let body = ReplayBody::from("{}");
        let request = Request::post("/v1/chat/completions").body(body).unwrap();
        let answer = rt.block_on(service.call(run.attach(request))).unwrap();
        measure(|| drop(answer)).count_total
    };
    // The first call makes the run's own tables, and the first end of a kind the key of its metric.
    ended();
    Run::open().end(TerminalReason::TurnCap);
    let call = ended();
    let run = measure(|| assert!(run.end(TerminalReason::TurnCap)));
    [call, run.count_total]
}

#[test]
fn an_end_allocates_nothing_while_nobody_listens() {
    assert_eq!(per_end(), [0, 0]);
}

#[test]
fn five_layers_around_a_ready_call() {
    assert_eq!(per_stack(), 23);
}

/// Asks for the events and spans of all levels, and then wants none.
struct Uninterested;

impl tracing::Subscriber for Uninterested {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        false
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        panic!("a span was made")
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// covers: H10
#[test]
fn a_subscriber_that_wants_no_span_costs_no_allocation() {
    tracing::subscriber::with_default(Uninterested, || {
        assert_eq!((per_stack(), per_end()), (23, [0, 0]));
    });
}

/// Three frames, each after one `Pending`.
#[derive(Clone, Copy)]
struct Few {
    left: u8,
    waited: bool,
}

impl Body for Few {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.waited = !self.waited;
        if self.waited {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or(0);
        Poll::Ready(left.map(|_| Ok(Frame::data(Bytes::from_static(TOKEN)))))
    }
}

/// Allocations, and bytes of them, of a call that is read to its end, with a ceiling.
fn per_read<L, B>(layer: L) -> [u64; 2]
where
    L: Layer<HardCeiling<Read>>,
    L::Service: Service<Request<()>, Response = Response<B>>,
    B: Body<Data = Bytes>,
{
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = rt.enter();
    let mut service = layer.layer(HardCeilingLayer::new(LIMIT).layer(Read));
    let mut read = || {
        let counted = measure(|| {
            rt.block_on(async {
                let Ok(answer) = service.call(Request::new(())).await else {
                    panic!("there is an answer")
                };
                let mut body = pin!(answer.into_body());
                while let Some(frame) = body.frame().await {
                    assert!(frame.is_ok());
                }
            });
        });
        [counted.count_total, counted.bytes_total]
    };
    read();
    read()
}

/// Answers with a `Few`.
#[derive(Clone, Copy)]
struct Read;

impl Service<Request<()>> for Read {
    type Response = Response<Few>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Few>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let waited = false;
        std::future::ready(Ok(Response::new(Few { left: 3, waited })))
    }
}

/// The pump shares the call with the end of its node: four boxes, a timer and a waker.
#[test]
fn a_pump_allocates_no_task_and_no_channel() {
    let [plain, plain_bytes] = per_read(ClientDisconnectLayer::new());
    let [pumped, pumped_bytes] = per_read(PumpLayer::new());
    let [drains, drains_bytes] = per_read(PumpLayer::new().drain(Some(LIMIT)));

    assert_eq!([pumped - plain, drains - plain], [6, 7]);
    let bytes = [pumped_bytes - plain_bytes, drains_bytes - plain_bytes];
    assert!(bytes[0] <= 850 && bytes[1] <= 1_150, "{bytes:?}");
}

/// What a layer in front of a service that answers at once, under an open run,
/// allocates: for a ready call, and then for `FRAMES` frames of its stream.
fn per_layer<L, B>(layer: L, pending: bool) -> [u64; 2]
where
    L: Layer<Streaming>,
    L::Service: Service<Request<ReplayBody>, Response = Response<B>>,
    B: Body<Data = Bytes>,
{
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = rt.enter();
    let mut service = layer.layer(Streaming { pending });
    let run = Run::open();
    let mut cx = Context::from_waker(Waker::noop());
    let mut allocations = [0, 0];
    // The first call makes the run's own tables.
    for _ in 0..2 {
        let body = ReplayBody::from(r#"{"model":"large","messages":[]}"#);
        let request = Request::post("/v1/chat/completions").body(body).unwrap();
        let request = run.attach(request);
        let mut answer = None;
        allocations[0] = measure(|| {
            let mut future = pin!(service.call(request));
            if let Poll::Ready(Ok(ready)) = future.as_mut().poll(&mut cx) {
                answer = Some(ready);
            }
        })
        .count_total;
        let mut body = pin!(answer.unwrap().into_body());
        let mut read = |mut left: usize| {
            while left > 0 {
                if let Poll::Ready(frame) = body.as_mut().poll_frame(&mut cx) {
                    black_box(frame.is_some_and(|frame| frame.is_ok()));
                    left -= 1;
                }
            }
        };
        read(2);
        allocations[1] = measure(|| read(FRAMES)).count_total;
    }
    allocations
}

/// Answers at once with a stream of events that never ends; allocates nothing.
#[derive(Clone, Copy)]
struct Streaming {
    pending: bool,
}

impl Service<Request<ReplayBody>> for Streaming {
    type Response = Response<Tokens>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Tokens>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<ReplayBody>) -> Self::Future {
        let (pending, waited) = (self.pending, false);
        let mut answer = Response::new(Tokens { pending, waited });
        let events = HeaderValue::from_static("text/event-stream");
        answer.headers_mut().insert(header::CONTENT_TYPE, events);
        std::future::ready(Ok(answer))
    }
}

/// The same for each layer that looks at what an agent does, in the order cap,
/// loops, comments, none, gate; over those of the bare service.
fn per_guard(pending: bool) -> [[u64; 2]; 5] {
    let probe = service_fn(|()| std::future::ready(Ok::<_, Infallible>(true)));
    let bare = per_layer(Identity::new(), pending);
    let every = Duration::from_secs(15);
    let all = [
        per_layer(TurnCapLayer::new(1000), pending),
        per_layer(LoopGuardLayer::new(), pending),
        per_layer(
            TerminalResponseLayer::new().keep_alive(Some(every)),
            pending,
        ),
        per_layer(TerminalResponseLayer::new(), pending),
        per_layer(HealthGateLayer::new(probe), pending),
    ];
    all.map(|[call, frames]| [call - bare[0], frames - bare[1]])
}

#[test]
fn a_frame_past_a_guard_allocates_nothing() {
    for pending in [false, true] {
        for [_, frames] in per_guard(pending) {
            assert_eq!(frames, 0, "pending: {pending}");
        }
    }
}

/// A body of frames of one byte each, allocated as they come.
struct Crumbs {
    text: &'static [u8],
    left: usize,
}

impl Body for Crumbs {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let byte = self.text[(self.text.len() - self.left % self.text.len()) % self.text.len()];
        self.left -= 1;
        let byte = Bytes::copy_from_slice(&[byte]);
        Poll::Ready(Some(Ok(Frame::data(byte))))
    }
}

/// The bytes that are allocated at most while a layer holds `length` bytes of an answer
/// that repeats `text`, and what it then hands on.
fn per_held<L, B>(layer: L, content_type: &'static str, text: &'static [u8], length: usize) -> u64
where
    L: Layer<BoxCloneCrumbs>,
    L::Service: Service<Request<ReplayBody>, Response = Response<B>>,
    B: Body<Data = Bytes>,
{
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _entered = rt.enter();
    let upstream: BoxCloneCrumbs =
        BoxCloneSyncService::new(service_fn(move |_: Request<ReplayBody>| async move {
            let mut answer = Response::new(Crumbs { text, left: length });
            let content_type = HeaderValue::from_static(content_type);
            answer
                .headers_mut()
                .insert(header::CONTENT_TYPE, content_type);
            Ok::<_, Infallible>(answer)
        }));
    let mut service = layer.layer(upstream);
    let body = ReplayBody::from(r#"{"model":"large","messages":[]}"#);
    let request = Request::post("/v1/chat/completions").body(body).unwrap();
    let mut cx = Context::from_waker(Waker::noop());
    let mut answer = None;
    let held = measure(|| {
        let mut future = pin!(service.call(request));
        while answer.is_none() {
            if let Poll::Ready(ready) = future.as_mut().poll(&mut cx) {
                answer = ready.ok();
            }
        }
    });
    let mut body = pin!(answer.unwrap().into_body());
    let mut read = 0;
    while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut cx) {
        // A stream that ends there was cut.
        let Ok(frame) = frame else { break };
        let data = frame.into_data().ok().unwrap();
        for byte in data {
            let at = (text.len() - (length - read) % text.len()) % text.len();
            assert_eq!(byte, text[at], "byte {read}");
            read += 1;
        }
    }
    assert_eq!(read, length);
    held.bytes_max
}

type BoxCloneCrumbs = BoxCloneSyncService<Request<ReplayBody>, Response<Crumbs>, Infallible>;

/// covers: T53
#[test]
fn a_held_byte_costs_a_few_bytes_though_it_comes_alone() {
    const KIB: usize = 1024;
    // Few events, so that it is their bytes that are too many to be held on.
    let prelude = format!(
        ": {}\n\ndata: {{\"choices\":[{{\"delta\":{{\"role\":\"assistant\"}}}}]}}\n\n",
        "x".repeat(2000)
    );
    let prelude = prelude.leak().as_bytes();
    for (content_type, text, length, held) in [
        // Held to its end, and judged in one piece.
        ("text/plain", &b"a crumb, "[..], 200 * KIB, 200 * KIB),
        // Held until it is too much.
        ("text/event-stream", prelude, 300 * KIB, 256 * KIB),
    ] {
        let fallback = ModelFallbackLayer::new([Candidate::new("large")]);
        let fallback = per_held(fallback, content_type, text, length);
        let repeats = RetryBudgetLayer::new(RetryBudget::new());
        let repeats = per_held(repeats, content_type, text, length);
        for bytes in [fallback, repeats] {
            let most = 4 * held as u64;
            assert!(bytes <= most, "{content_type}: {bytes} for {held}");
        }
    }
}

/// Whoever settles a call judges its stream, which is five and a note of it; the
/// layers' own are what reads the calls of an answer, the clocks of comments with
/// the slot for their call, and the request that a gate may send again.
#[test]
fn a_ready_call_past_a_guard_allocates_little_of_its_own() {
    let judge = per_layer(StepTimeoutLayer::new(LIMIT), false);
    let judge = judge[0] - per_layer(Identity::new(), false)[0];
    assert_eq!(judge, 6);
    let calls = per_guard(false).map(|[call, _]| call);
    assert_eq!(calls, [judge, judge + 2, judge + 1, judge - 2, judge + 5]);
}
