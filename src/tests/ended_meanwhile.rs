//! A run that another thread ends, while that thread stands between storing the end
//! and spreading it: whatever the call comes to in that moment, the caller is told
//! the reason, and no other call is made.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

use super::{
    stacks::build::{Boxed, boxed},
    support::{DONE, TOKEN},
};
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

const ASK: &str = "{\"model\":\"m\",\"stream\":true,\"messages\":[]}";

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
        for streams in both {
            for pumped in both {
                shapes.extend(both.map(|tries| Shape {
                    streams,
                    pumped,
                    tries,
                    then,
                }));
            }
        }
    }
    shapes
}

fn broken() -> BoxError {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

/// A body of a first frame, and of another, or an error, once the end is stored.
struct Answer {
    first: Option<&'static str>,
    stored: oneshot::Receiver<()>,
    then: Option<Then>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let data = |text| Some(Ok(Frame::data(Bytes::from_static(text))));
        if let Some(first) = self.first.take() {
            return Poll::Ready(data(first.as_bytes()));
        }
        if self.then.is_some() && Pin::new(&mut self.stored).poll(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(match self.then.take() {
            Some(Then::Completes) => data(DONE.as_bytes()),
            Some(Then::Breaks) => Some(Err(broken())),
            Some(Then::Fails) | None => None,
        })
    }
}

/// The answer of a shape; one that does not stream waits for the end with its head.
async fn answer(
    shape: Shape,
    mut stored: oneshot::Receiver<()>,
) -> Result<Response<Answer>, BoxError> {
    let head = Response::builder();
    if shape.streams {
        let head = head.header("content-type", "text/event-stream");
        return Ok(head.body(Answer {
            first: Some(TOKEN),
            stored,
            then: Some(shape.then),
        })?);
    }
    let _ = (&mut stored).await;
    let (status, text) = match shape.then {
        Then::Completes => (200, "{\"answer\":42}"),
        Then::Fails => (503, "{\"error\":{\"message\":\"boom\"}}"),
        Then::Breaks => return Err(broken()),
    };
    let head = head.header("content-type", "application/json");
    Ok(head.status(status).body(Answer {
        first: Some(text),
        stored,
        then: None,
    })?)
}

/// The layers of a server around `upstream`.
fn stack(shape: Shape, upstream: Boxed) -> Boxed {
    let mut stack = upstream;
    if shape.tries {
        let candidates = [Candidate::new("a"), Candidate::new("b")];
        let tries = ServiceBuilder::new()
            .layer(ModelFallbackLayer::new(candidates))
            .layer(RetryBudgetLayer::new(RetryBudget::new()))
            .layer(StepTimeoutLayer::new(LIMIT));
        stack = boxed(tries.service(stack));
    }
    let timed = ServiceBuilder::new()
        .layer(ClientDisconnectLayer::new())
        .layer(HardCeilingLayer::new(LIMIT))
        .layer(StepTimeoutLayer::new(LIMIT));
    stack = boxed(timed.service(stack));
    if shape.pumped {
        stack = boxed(PumpLayer::new().layer(stack));
    }
    let outside = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(RunRegistry::new()));
    boxed(outside.service(stack))
}

/// What the caller saw, and how many calls were made.
#[derive(Debug)]
struct Seen {
    status: u16,
    reason: Option<String>,
    text: String,
    calls: usize,
}

impl Seen {
    fn tells(&self, shape: Shape) -> bool {
        let told = if shape.streams {
            let ends = self.text.contains("\"code\":\"aborted\"");
            self.status == 200 && ends && !self.text.contains("[DONE]")
        } else {
            self.status == 499 && self.reason.as_deref() == Some("aborted")
        };
        told && self.calls == 1
    }
}

/// Reads an answer to its end, and says when the first frame was there.
async fn read(stack: Boxed, first: oneshot::Sender<()>) -> Seen {
    let request = Request::post("/v1/chat/completions").header("x-run-id", "r");
    let request = request.body(ReplayBody::from(ASK)).unwrap();
    let mut answer = stack.oneshot(request).await.unwrap();
    let reason = answer.headers().get("x-terminal-reason");
    let mut seen = Seen {
        status: answer.status().as_u16(),
        reason: reason.map(|reason| reason.to_str().unwrap().to_owned()),
        text: String::new(),
        calls: 0,
    };
    let mut first = Some(first);
    while let Some(frame) = answer.body_mut().frame().await {
        let text = match frame {
            Ok(frame) => frame.into_data().unwrap_or_default(),
            Err(error) => Bytes::from(format!("broke: {error:?}")),
        };
        seen.text.push_str(std::str::from_utf8(&text).unwrap());
        first.take().map(|first| first.send(()));
    }
    seen
}

/// One call, which the upstream has, and if it streams the caller too, as another
/// thread ends it.
async fn one(shape: Shape) -> Seen {
    let calls = Arc::new(AtomicUsize::new(0));
    let (store, stored) = oneshot::channel();
    let (asked, is_asked) = oneshot::channel::<Run>();
    let once = Arc::new(Mutex::new(Some((stored, asked))));
    let counted = Arc::clone(&calls);
    let upstream = service_fn(move |request: Request<ReplayBody>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let run = request.extensions().get::<Run>().cloned().unwrap();
        let once = once.lock().unwrap().take();
        async move {
            let (stored, asked) = once.ok_or_else(broken)?;
            let _ = asked.send(run);
            answer(shape, stored).await
        }
    });
    let (first, is_first) = oneshot::channel();
    let reader = tokio::spawn(read(stack(shape, boxed(upstream)), first));
    let run = is_asked.await.unwrap().run();
    if shape.streams {
        is_first.await.unwrap();
    }
    let ender = thread::spawn(move || {
        gap::act_in_next(move || {
            let _ = store.send(());
            thread::sleep(GAP);
        });
        assert!(run.end(TerminalReason::Aborted));
    });
    let seen = reader.await.unwrap();
    ender.join().unwrap();
    let calls = calls.load(Ordering::SeqCst);
    Seen { calls, ..seen }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_call_comes_to_once_its_end_is_stored_the_caller_is_told_the_reason() {
    let shapes = shapes();
    let mut untold = BTreeMap::<String, (usize, Seen)>::new();
    for number in 0..CALLS {
        let shape = shapes[number % shapes.len()];
        let seen = one(shape).await;
        if !seen.tells(shape) {
            let shape = format!("{shape:?}");
            untold.entry(shape).or_insert_with(|| (0, seen)).0 += 1;
        }
    }
    assert!(untold.is_empty(), "{untold:#?}");
}
