use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    body::ProbedBody,
    gate::Gate,
    reading::Reading,
    trip::{Failed, GateStep, Trip, Waiting},
};
use crate::{
    body::ReplayBody,
    error::BoxError,
    run::{Role, Run, TaskId},
    supervise::Upload,
};

pin_project! {
    /// The future of a call: buffers and sends the request, and sends it again after each wait.
    #[must_use = "futures do nothing unless polled"]
    pub struct Passage<S, P, Q, B>
    where
        S: Service<Request<ReplayBody>>,
        P: Service<()>,
    {
        #[pin]
        stage: Stage<S::Future, P, Q, B>,
        trip: Trip<S, P, B>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<F, P, Q, B>
    where
        P: Service<()>,
    {
        // The request body is being buffered.
        Upload {
            #[pin]
            upload: Upload<Q>,
        },
        Readying,
        Calling {
            #[pin]
            call: F,
        },
        // The body of a failed answer is being read, to classify the answer.
        Reading { reading: Option<Reading<B>> },
        Waiting { waiting: Waiting<P> },
        Over,
    }
}

impl<S, P, Q, B> Passage<S, P, Q, B>
where
    S: Service<Request<ReplayBody>>,
    P: Service<()>,
    Q: Body + 'static,
{
    /// Makes the future of one call; `service` has been polled ready.
    pub(super) fn new(service: S, gate: Arc<Gate<P>>, run: Run, request: Request<Q>) -> Self {
        let applies = gate.applies(&request);
        let limit = gate.max_body;
        Self {
            stage: Stage::Upload {
                upload: Upload::new(request, limit),
            },
            trip: Trip::new(service, gate, run, applies),
        }
    }
}

impl<S, P, Q, B> Future for Passage<S, P, Q, B>
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    P: Service<(), Response = bool> + Clone,
    Q: Body<Data = Bytes>,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<ProbedBody<B, P>>, BoxError>;

    /// # Panics
    ///
    /// If it is polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match ready!(this.stage.as_mut().poll(this.trip, cx)) {
                GateStep::Call => match this.trip.call() {
                    Some(call) => this.stage.set(Stage::Calling { call }),
                    None => this.stage.set(Stage::Readying),
                },
                GateStep::Read(reading) => {
                    let reading = Some(reading);
                    this.stage.set(Stage::Reading { reading });
                }
                GateStep::Wait => {
                    // Drop the inner future before the wait: it may hold a permit that
                    // the next call needs.
                    this.stage.set(Stage::Over);
                    let waiting = this.trip.waiting();
                    this.stage.set(Stage::Waiting { waiting });
                }
                GateStep::Done(answer) => {
                    this.stage.set(Stage::Over);
                    return Poll::Ready(answer);
                }
            }
        }
    }
}

impl<F, P, Q, B, E> Stage<F, P, Q, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    P: Service<(), Response = bool> + Clone,
    Q: Body<Data = Bytes>,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn poll<S>(
        self: Pin<&mut Self>,
        trip: &mut Trip<S, P, B>,
        cx: &mut Context<'_>,
    ) -> Poll<GateStep<B, P>>
    where
        S: Service<Request<ReplayBody>, Response = Response<B>, Error = E, Future = F> + Clone,
    {
        let task = TaskId::of(cx.waker());
        match self.project() {
            StageProj::Upload { upload } => {
                let Poll::Ready(request) = upload.poll(&trip.run, cx) else {
                    trip.yield_service();
                    return Poll::Pending;
                };
                Poll::Ready(match request {
                    Ok(request) => {
                        trip.request = Some(request);
                        trip.begin()
                    }
                    Err(error) => GateStep::Done(Err(error)),
                })
            }
            StageProj::Readying => {
                let readiness = trip.service.poll_ready(cx);
                // Check the deadlines: the service may become ready in the instant of a deadline.
                if let Some(done) = trip.stopped(task) {
                    return Poll::Ready(done);
                }
                Poll::Ready(match ready!(readiness) {
                    Ok(()) => trip.ready(),
                    Err(error) => trip.broken(error.into(), task),
                })
            }
            StageProj::Calling { call } => match Role::apart(|| call.poll(cx)) {
                Poll::Ready(Ok(answer)) => Poll::Ready(trip.answered(answer, task)),
                Poll::Ready(Err(error)) => Poll::Ready(trip.broken(error.into(), task)),
                Poll::Pending => {
                    if let Some(silence) = &mut trip.silence {
                        silence.poll(cx);
                    }
                    Poll::Pending
                }
            },
            StageProj::Reading { reading: slot } => {
                let Some(reading) = slot else {
                    panic!("an answer was read twice");
                };
                let loads = ready!(reading.poll(&trip.gate.judgement, cx));
                Poll::Ready(match slot.take() {
                    Some(read) if loads => trip.failed(Failed::Answer(Box::new(read)), task),
                    Some(read) => trip.hand_on(read),
                    None => panic!("an answer was read twice"),
                })
            }
            StageProj::Waiting { waiting } => trip.wait(waiting, task, cx),
            StageProj::Over => panic!("a response future was polled after it was ready"),
        }
    }
}

impl<S, P, Q, B> fmt::Debug for Passage<S, P, Q, B>
where
    S: Service<Request<ReplayBody>>,
    P: Service<()>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Passage")
            .field("run", &self.trip.run)
            .finish_non_exhaustive()
    }
}
