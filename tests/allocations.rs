//! What a frame and a call allocate: counted, not timed.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    convert::Infallible,
    hint::black_box,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use allocation_counter::measure;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body::{Body, Frame};
use http_body_util::{Empty, Full};
use tower::{Service, ServiceBuilder, service_fn};
use tower_agent::{
    Candidate, ClientDisconnectLayer, HardCeilingLayer, ModelFallbackLayer, ReplayBody,
    RetryBudget, RetryBudgetLayer, Run, StepTimeoutLayer,
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
fn a_call_that_waits_allocates_its_timer_and_its_window() {
    assert_eq!(per_call(true), 2);
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

#[test]
fn five_layers_around_a_ready_call() {
    assert_eq!(per_stack(), 21);
}
