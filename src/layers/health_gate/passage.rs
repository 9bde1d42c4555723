use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    body::Passed,
    gate::Gate,
    reading::Reading,
    trip::{Failed, Trip, Turned, Waiting},
};
use crate::{
    body::{Buffering, ReplayBody},
    error::BoxError,
    run::{PauseGuard, Run, TaskId},
};

pin_project! {
    /// One call on its way through a gate: made, and made again after a wait.
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
        // The request's body is being read.
        Upload {
            #[pin]
            body: Buffering<Q>,
            head: Option<Parts>,
            // The caller's time, not the upstream's silence.
            pause: Option<PauseGuard>,
        },
        // It is there.
        Begin,
        Readying,
        Calling {
            #[pin]
            call: F,
        },
        // The answer of a failure is being read.
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
    /// A call of `service`, which was asked whether it is ready.
    pub(super) fn new(service: S, gate: Arc<Gate<P>>, found: Run, request: Request<Q>) -> Self {
        let applies = gate.applies(&request);
        let limit = gate.max_body;
        let mut trip = Trip::new(service, gate, found, applies);
        let (head, body) = request.into_parts();
        let stage = match ReplayBody::try_from_body(body) {
            Ok(body) => {
                trip.request = Some(Request::from_parts(head, body));
                Stage::Begin
            }
            Err(body) => Stage::Upload {
                body: Buffering::new(body, limit),
                head: Some(head),
                pause: None,
            },
        };
        Self { stage, trip }
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
    type Output = Result<Response<Passed<B, P>>, BoxError>;

    /// # Panics
    ///
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match ready!(this.stage.as_mut().poll(this.trip, cx)) {
                Turned::Call => match this.trip.call() {
                    Some(call) => this.stage.set(Stage::Calling { call }),
                    None => this.stage.set(Stage::Readying),
                },
                Turned::Read(reading) => {
                    let reading = Some(reading);
                    this.stage.set(Stage::Reading { reading });
                }
                Turned::Wait => {
                    // Before the wait: what is inside may hold a place that the
                    // next call needs.
                    this.stage.set(Stage::Over);
                    let waiting = this.trip.waiting();
                    this.stage.set(Stage::Waiting { waiting });
                }
                Turned::Done(answer) => {
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
    ) -> Poll<Turned<B, P>>
    where
        S: Service<Request<ReplayBody>, Response = Response<B>, Error = E, Future = F> + Clone,
    {
        let task = TaskId::of(cx.waker());
        match self.project() {
            StageProj::Upload { body, head, pause } => {
                let Poll::Ready(body) = body.poll(cx) else {
                    pause.get_or_insert_with(|| trip.found.pause());
                    trip.found.node().payload.set_refused(true);
                    trip.yield_service();
                    return Poll::Pending;
                };
                trip.found.node().payload.set_refused(body.is_err());
                Poll::Ready(match (body, head.take()) {
                    (Ok(body), Some(head)) => {
                        trip.request = Some(Request::from_parts(head, body));
                        trip.begin()
                    }
                    (Err(error), _) => Turned::Done(Err(error)),
                    (Ok(_), None) => panic!("a body was read twice"),
                })
            }
            StageProj::Begin => Poll::Ready(trip.begin()),
            StageProj::Readying => {
                let readiness = trip.service.poll_ready(cx);
                // The clocks, for the service may be ready at the very deadline.
                if let Some(done) = trip.stopped(task) {
                    return Poll::Ready(done);
                }
                Poll::Ready(match ready!(readiness) {
                    Ok(()) => trip.ready(),
                    Err(error) => trip.broken(error.into(), task),
                })
            }
            StageProj::Calling { call } => match call.poll(cx) {
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
            .field("run", &self.trip.found)
            .finish_non_exhaustive()
    }
}
