//! A run that another thread ends, while that thread stands between storing the end
//! and spreading it: whatever the call comes to in that moment, the caller is told
//! the reason.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tokio::sync::oneshot;
use tower::{ServiceBuilder, ServiceExt, service_fn};

use crate::{
    BoxError, Candidate, ClientDisconnectLayer, HardCeilingLayer, ModelFallbackLayer, PumpLayer,
    ReplayBody, RetryBudget, RetryBudgetLayer, Run, RunLayer, RunRegistry, StepTimeoutLayer,
    TerminalReason, TerminalResponseLayer, run::gap,
};

/// How many calls end so. Each shape has its share.
const CALLS: usize = 5_000;
/// How long the end has not spread: time enough for tasks on other threads.
const GAP: Duration = Duration::from_micros(200);
const LIMIT: Duration = Duration::from_secs(600);

const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// What the upstream does once the end is stored.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// It answers, or sends the rest of its stream.
    Completes,
    Breaks,
    /// It answers a failure that is worth another try; a stream is cut.
    Fails,
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    streams: bool,
    pumped: bool,
    tries: bool,
    then: Then,
}

fn shapes() -> Vec<Shape> {
    let both = [false, true];
    let mut shapes = vec![];
    for then in [Then::Completes, Then::Breaks, Then::Fails] {
        for (streams, pumped, tries) in both.iter().flat_map(|a| {
            let rest = both.iter().flat_map(move |b| both.map(|c| (*a, *b, c)));
            rest.collect::<Vec<_>>()
        }) {
            shapes.push(Shape {
                streams,
                pumped,
                tries,
                then,
            });
        }
    }
    shapes
}

/// A body that gives what it has, and the rest when it is told to.
struct Answer {
    first: Option<Bytes>,
    wait: oneshot::Receiver<()>,
    rest: Option<Result<Bytes, BoxError>>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if self.rest.is_some() && Pin::new(&mut self.wait).poll(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(self.rest.take().map(|rest| rest.map(Frame::data)))
    }
}

fn broken() -> BoxError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

/// The status, the reason that the head tells, and the whole of the body.
type Seen = (u16, Option<String>, String);

/// One call, ended by the thread of `end` once the upstream has it.
async fn one(shape: Shape, calls: &'static AtomicUsize) -> Result<(), Seen> {
    let registry = RunRegistry::new();
    let (go, wait) = oneshot::channel();
    let (asked, is_asked) = oneshot::channel::<Run>();
    let once = std::sync::Arc::new(Mutex::new(Some((wait, asked))));
    let upstream = service_fn(move |request: Request<ReplayBody>| {
        calls.fetch_add(1, Ordering::SeqCst);
        let run = request.extensions().get::<Run>().cloned().unwrap();
        let once = once.lock().unwrap().take();
        async move {
            // A second call is one too many, and is counted.
            let (wait, asked) = once.ok_or_else(broken)?;
            let _ = asked.send(run);
            let (status, first, rest) = match (shape.streams, shape.then) {
                (true, Then::Completes) => (200, Some(TOKEN), Ok(DONE)),
                (true, Then::Breaks) => (200, Some(TOKEN), Err(broken())),
                (true, Then::Fails) => (200, Some(TOKEN), Ok("")),
                (false, then) => {
                    let _ = wait.await;
                    let done = oneshot::channel().1;
                    let (status, text) = match then {
                        Then::Completes => (200, "{\"answer\":42}"),
                        Then::Fails => (503, "{\"error\":{\"message\":\"boom\"}}"),
                        Then::Breaks => return Err(broken()),
                    };
                    let answer = Answer {
                        first: Some(Bytes::from(text)),
                        wait: done,
                        rest: None,
                    };
                    let head = Response::builder().status(status);
                    let head = head.header("content-type", "application/json");
                    return Ok(head.body(answer).unwrap());
                }
            };
            let answer = Answer {
                first: first.map(Bytes::from),
                wait,
                rest: Some(rest.map(Bytes::from)),
            };
            let head = Response::builder().status(status);
            Ok::<_, BoxError>(
                head.header("content-type", "text/event-stream")
                    .body(answer)
                    .unwrap(),
            )
        }
    });
    let request = Request::post("/v1/chat/completions")
        .header("x-run-id", "r")
        .body(Full::from(
            "{\"model\":\"m\",\"stream\":true,\"messages\":[]}",
        ))
        .unwrap();
    let ender = move |run: Run| {
        thread::spawn(move || {
            gap::act_in_next(move || {
                let _ = go.send(());
                thread::sleep(GAP);
            });
            assert!(run.run().end(TerminalReason::Aborted));
        })
    };
    let base = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(registry));
    let timed = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(LIMIT))
        .layer(StepTimeoutLayer::new(LIMIT));
    let tries = ServiceBuilder::new()
        .layer(ModelFallbackLayer::new([
            Candidate::new("a"),
            Candidate::new("b"),
        ]))
        .layer(RetryBudgetLayer::new(RetryBudget::new()))
        .layer(StepTimeoutLayer::new(LIMIT));
    let replay = ServiceBuilder::new().map_request(|request: Request<Full<Bytes>>| {
        request.map(|_| ReplayBody::from("{\"model\":\"m\",\"stream\":true,\"messages\":[]}"))
    });
    let before = calls.load(Ordering::SeqCst);
    let mut seen: Seen = match (shape.pumped, shape.tries) {
        (true, true) => {
            let stack = base
                .layer(PumpLayer::new(4))
                .layer(timed)
                .layer(tries)
                .service(upstream);
            ask(stack, request, shape.streams, is_asked, ender).await
        }
        (true, false) => {
            let stack = base
                .layer(PumpLayer::new(4))
                .layer(timed)
                .layer(replay)
                .service(upstream);
            ask(stack, request, shape.streams, is_asked, ender).await
        }
        (false, true) => {
            let stack = base.layer(timed).layer(tries).service(upstream);
            ask(stack, request, shape.streams, is_asked, ender).await
        }
        (false, false) => {
            let stack = base.layer(timed).layer(replay).service(upstream);
            ask(stack, request, shape.streams, is_asked, ender).await
        }
    };
    let made = calls.load(Ordering::SeqCst) - before;
    seen.2.push_str(&format!("\n{made} upstream calls"));
    let (status, reason, text) = &seen;
    let told = if shape.streams {
        *status == 200 && text.contains("\"code\":\"aborted\"") && !text.contains("[DONE]")
    } else {
        *status == 499 && reason.as_deref() == Some("aborted")
    };
    if told && made == 1 { Ok(()) } else { Err(seen) }
}

async fn ask<S, B>(
    stack: S,
    request: Request<Full<Bytes>>,
    streams: bool,
    is_asked: oneshot::Receiver<Run>,
    end: impl FnOnce(Run) -> thread::JoinHandle<()>,
) -> Seen
where
    S: tower::Service<Request<Full<Bytes>>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: std::fmt::Debug + Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::fmt::Debug + Send,
{
    let (reads, is_read) = oneshot::channel();
    let mut reads = Some(reads);
    let answer = tokio::spawn(async move {
        let mut answer = stack.oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let reason = answer.headers().get("x-terminal-reason");
        let reason = reason.map(|reason| reason.to_str().unwrap().to_owned());
        let mut text = String::new();
        while let Some(frame) = answer.body_mut().frame().await {
            match frame {
                Ok(frame) => {
                    let data = frame.into_data().unwrap_or_default();
                    text.push_str(std::str::from_utf8(&data).unwrap());
                    reads.take().map(|reads| reads.send(()));
                }
                Err(error) => {
                    text.push_str(&format!("broke: {error:?}"));
                    break;
                }
            }
        }
        (status, reason, text)
    });
    let run = is_asked.await.unwrap();
    if streams {
        is_read.await.unwrap();
    }
    let ender = end(run);
    let seen = answer.await.unwrap();
    ender.join().unwrap();
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_call_comes_to_once_the_end_is_stored_the_caller_is_told_the_reason() {
    static CALLED: AtomicUsize = AtomicUsize::new(0);
    let shapes = shapes();
    let mut untold = std::collections::BTreeMap::<String, (usize, Seen)>::new();
    for number in 0..CALLS {
        let shape = shapes[number % shapes.len()];
        if let Err(seen) = one(shape, &CALLED).await {
            let shape = format!("{shape:?}");
            untold.entry(shape).or_insert_with(|| (0, seen)).0 += 1;
        }
    }
    assert!(untold.is_empty(), "{untold:#?}");
}
