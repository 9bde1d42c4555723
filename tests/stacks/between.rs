//! Layers of a program, between those of the crate: each moves the call or its body to
//! another task, delays it, or lets go of it early.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{FuturesUnordered, Stream, select_all, unfold},
};
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody, combinators::UnsyncBoxBody};
use proptest::prelude::*;
use tokio::{sync::mpsc, task::JoinHandle, time::sleep};
use tower::{ServiceExt, buffer::Buffer, service_fn};
use tower_agent::{BoxError, ReplayBody};

use crate::tests::stacks::build::{Boxed, boxed};

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;
type Answered = Result<Answer, BoxError>;
type Part = Result<Frame<Bytes>, BoxError>;

/// One layer of a program; times in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// The call runs in a task of its own; the reader reads the body.
    Spawn,
    /// The call and its body run in a task of their own, one frame ahead of the reader.
    SpawnBody,
    /// The reader polls the call once; a call that is pending then goes on in a task.
    PollThenSpawn,
    /// The call and its body are each polled with a waker of their own.
    Unordered,
    /// A worker calls the service.
    Buffer,
    /// The request waits for so long before it is called.
    Queue(u64),
    /// The answer is handed on once all of its body is there.
    Collect,
    /// The body is not polled for so long before each frame.
    Throttle(u64),
    /// The end of the body is handed on so long after it came.
    Linger(u64),
    /// A call that fails is made once more after so long.
    Retry(u64),
    /// The body ends, and is dropped, after so many frames.
    Take(usize),
}

/// A layer of a program, and where it stands: outside of the layer with this number.
pub(crate) fn between() -> impl Strategy<Value = (usize, Between)> {
    let layer = prop_oneof![
        Just(Between::Spawn),
        Just(Between::SpawnBody),
        Just(Between::PollThenSpawn),
        Just(Between::Unordered),
        Just(Between::Buffer),
        (1..4u64).prop_map(Between::Queue),
        Just(Between::Collect),
        (1..4u64).prop_map(Between::Throttle),
        (1..4u64).prop_map(Between::Linger),
        (0..4u64).prop_map(Between::Retry),
        (0..4usize).prop_map(Between::Take),
    ];
    (0..12usize, layer)
}

impl Between {
    /// Whether the upstream or the reader is polled by another task.
    pub(crate) const fn spawns(self) -> bool {
        matches!(self, Self::Spawn | Self::SpawnBody | Self::PollThenSpawn)
    }

    /// Whether an oracle holds although this layer is there. The oracles of times and bytes
    /// speak of the upstream's, and those of one request do not know that it is made twice.
    /// The outcomes in `outcomes/` hold for all layers.
    pub(crate) fn keeps(self, oracle: &str) -> bool {
        let changes: &[&str] = match self {
            // What is not woken is not polled.
            Self::Unordered => &[
                "1 it is the earliest cause",
                "3 upstream is dropped at once",
                "8 who waits for an answer is told of the end",
            ],
            // The worker calls in a turn of its own.
            Self::Buffer => &[
                "1 it is over before anybody knows it",
                "1 it is the earliest cause",
                "8 a ceiling ends every wait for an answer",
                "2 a call waits until its upstream is healthy",
                "2 no upstream call starts at the end of its time",
                "2 no upstream call starts under what is over",
                "2 nothing after the end",
                // While its service is busy, no layer inside sees the request.
                "2 no more turns than the cap",
                "2 nothing of any request after the end of the run",
                // A pump reads on what the worker has still to call.
                "2 nothing starts after the reader left",
                // It calls for an attempt that is over, when the next one has begun.
                "5 each candidate gets the caller's request",
                "6 no clock early",
            ],
            // So does a task, and its answer comes a turn later than the upstream's.
            Self::Spawn | Self::SpawnBody | Self::PollThenSpawn => &[
                "1 it is over before anybody knows it",
                "1 it is the earliest cause",
                "2 no upstream call starts under what is over",
                "2 nothing of any request after the end of the run",
                "2 nothing after the end",
                "3 upstream is dropped at once",
                "5 no failure is served while a candidate is left",
                "5 nothing is tried after the commit",
                "8 a ceiling is an end",
                "4 each unit is spent or refunded once",
                "11 its summary counts its attempts",
                // What was read ahead is dropped unseen.
                "11 its summary says why the model stopped",
            ],
            // The clocks of the run may begin after the wait, or pass in it.
            Self::Queue(_) => &[
                "1 it is over before anybody knows it",
                "1 it is the earliest cause",
                "2 a call waits until its upstream is healthy",
                "2 no more turns than the cap",
                "2 no upstream call starts at the end of its time",
                "2 nothing starts after the reader left",
                "6 no clock early",
                "6 a wait for the upstream is no silence",
                "8 a ceiling ends every wait for an answer",
                "8 a ceiling is an end",
                "11 its summary says how long it took",
            ],
            Self::Collect => &[
                "1 it is the earliest cause",
                "5 no failure is served while a candidate is left",
                "5 nothing is tried after the commit",
                "6 no repeat before the upstream asked for it",
                "7 an answer is held until its commit",
                // An answer whose error event it has read is over for the layers inside, and not
                // for those outside.
                "8 a ceiling is an end",
                "11 its summary says why the model stopped",
            ],
            Self::Throttle(_) => &[
                "1 it is the earliest cause",
                "3 upstream is dropped at once",
                "6 no clock early",
                "7 an answer is held until its commit",
                "8 a ceiling ends every wait for an answer",
                "8 who waits for an answer is told of the end",
            ],
            // Its silence counts, to a layer outside of it.
            Self::Linger(_) => &[
                "1 it is the earliest cause",
                "6 no clock early",
                "7 an answer is held until its commit",
                "8 a ceiling ends every wait for an answer",
                "8 who waits for an answer is told of the end",
            ],
            // Without a run around it, each call opens one.
            Self::Retry(_) => &[
                "1 it is the earliest cause",
                "1 one reason per node, and it never changes",
                "2 a call waits until its upstream is healthy",
                "2 no more turns than the cap",
                "2 no upstream call starts at the end of its time",
                "2 nothing after the end",
                "2 nothing of any request after the end of the run",
                // It repeats in the drain of a pump, too.
                "2 nothing starts after the reader left",
                "3 upstream is dropped at once",
                "4 no more repeats than the budget pays for",
                "4 each unit is spent or refunded once",
                "5 each candidate gets the caller's request",
                // Its delay is silence, to a layer outside of it.
                "6 no clock early",
                "6 a wait for the upstream is no silence",
                "8 a ceiling ends every wait for an answer",
                "8 who waits for an answer is told of the end",
            ],
            Self::Take(_) => &[
                "1 it is the earliest cause",
                "7 an answer is held until its commit",
                "7 the reader's bytes are the upstream's",
                "9 what was ended says so",
                "completed is what the reader saw",
            ],
        };
        // A request that is made twice has two calls.
        let summaries = matches!(self, Self::Retry(_)) && oracle.starts_with("11 ");
        !changes.contains(&oracle) && !summaries
    }

    pub(crate) fn layer(self, inner: Boxed) -> Boxed {
        match self {
            Self::Buffer => boxed(Buffer::new(inner, 4)),
            Self::Spawn => boxed(inner.clone().map_future(|call| Task::new(call).join())),
            Self::Unordered => boxed(inner.map_future(|call| async move {
                let mut calls = FuturesUnordered::from_iter([call]);
                let answer = calls.next().await.unwrap()?;
                let stream = |body| select_all([BodyStream::new(body)]);
                Answered::Ok(answer.map(|body| stream_body(stream(body))))
            })),
            Self::PollThenSpawn => boxed(inner.map_future(|mut call| async move {
                match poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
                    Poll::Ready(answer) => answer,
                    Poll::Pending => Task::new(call).join().await,
                }
            })),
            Self::SpawnBody => boxed(inner.map_future(|call| async move {
                let (head, body) = Task::new(call).join().await?.into_parts();
                Answered::Ok(Response::from_parts(head, read_ahead(body)))
            })),
            Self::Collect => boxed(inner.map_future(|call| async move {
                let (head, body) = call.await?.into_parts();
                let bytes = body.collect().await?.to_bytes();
                let body = Full::new(bytes).map_err(|never| match never {});
                Answered::Ok(Response::from_parts(head, body.boxed_unsync()))
            })),
            Self::Throttle(ticks) => boxed(inner.map_response(move |answer: Answer| {
                answer.map(|body| {
                    stream_body(unfold(body, move |mut body| async move {
                        sleep(Duration::from_secs(ticks)).await;
                        Some((body.frame().await?, body))
                    }))
                })
            })),
            Self::Linger(ticks) => boxed(inner.map_response(move |answer: Answer| {
                answer.map(|body| {
                    stream_body(unfold(body, move |mut body| async move {
                        match body.frame().await {
                            Some(frame) => Some((frame, body)),
                            None => {
                                sleep(Duration::from_secs(ticks)).await;
                                None
                            }
                        }
                    }))
                })
            })),
            Self::Take(frames) => boxed(inner.map_response(move |answer: Answer| {
                answer.map(|body| stream_body(BodyStream::new(body).take(frames)))
            })),
            Self::Queue(_) | Self::Retry(_) => {
                boxed(service_fn(move |request: Request<ReplayBody>| {
                    self.calls(inner.clone(), request)
                }))
            }
        }
    }

    async fn calls(self, inner: Boxed, request: Request<ReplayBody>) -> Answered {
        if let Self::Queue(ticks) = self {
            sleep(Duration::from_secs(ticks)).await;
        }
        let again = request.clone();
        let answered = inner.clone().oneshot(request).await;
        match (self, answered) {
            (Self::Retry(ticks), Err(_)) => {
                sleep(Duration::from_secs(ticks)).await;
                inner.oneshot(again).await
            }
            (_, answered) => answered,
        }
    }
}

fn stream_body(
    stream: impl Stream<Item = Part> + Send + 'static,
) -> UnsyncBoxBody<Bytes, BoxError> {
    StreamBody::new(stream).boxed_unsync()
}

/// Reads the body in a task of its own.
fn read_ahead(mut body: UnsyncBoxBody<Bytes, BoxError>) -> UnsyncBoxBody<Bytes, BoxError> {
    let (hands_on, frames) = mpsc::channel(1);
    let task = Task::new(async move {
        while let Some(frame) = body.frame().await {
            if hands_on.send(frame).await.is_err() {
                return;
            }
        }
    });
    stream_body(unfold((frames, task), |(mut frames, task)| async move {
        Some((frames.recv().await?, (frames, task)))
    }))
}

/// A task that ends with its owner.
struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    fn new(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    async fn join(mut self) -> T {
        Pin::new(&mut self.0).await.unwrap()
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
