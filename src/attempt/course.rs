use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    AttemptBody, Chain,
    admitted::Admitted,
    pilot::{Pilot, Started, Turned},
    trial::Trial,
};
use crate::{
    BoxError,
    body::{Buffering, ReplayBody},
    retry_budget::Grant,
    run::{Nanos, PauseGuard, Run, Turn, nanos},
};

/// How long the answer of a failure is read for to judge it.
const ERROR_TIME: Duration = Duration::from_secs(1);

/// How many stages a call goes through in one poll.
const TURNS: usize = 64;

pin_project! {
    /// The response future of a layer that may try more than once.
    ///
    /// # Errors
    ///
    /// A [`Terminated`](crate::Terminated) once the node is over, with the last
    /// error as its source if there was one; else the error of the last try, or
    /// of a request that cannot be sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the try that is under way; nothing is tried after it.
    #[must_use = "futures do nothing unless polled"]
    pub struct Attempts<S, Q, B, C>
    where
        S: Service<Request<ReplayBody>>,
        B: Body,
    {
        #[pin]
        stage: Stage<S::Future, Q, B>,
        pilot: Pilot<S, C>,
    }

    impl<S, Q, B, C> PinnedDrop for Attempts<S, Q, B, C>
    where
        S: Service<Request<ReplayBody>>,
        B: Body,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // What is inside first: who opened its node speaks last.
            this.stage.set(Stage::Over);
            this.pilot.finish();
        }
    }
}

pin_project! {
    #[project = StageProj]
    pub(super) enum Stage<F, Q, B>
    where
        B: Body,
    {
        /// The request's body is being read.
        Upload {
            #[pin]
            body: Buffering<Q>,
            head: Option<Parts>,
            // The caller's time, not the upstream's silence.
            pause: Option<PauseGuard>,
        },
        /// It is there.
        Begin { request: Option<Request<ReplayBody>> },
        /// The inner service is asked whether it is ready.
        Readying { admitted: Option<Admitted> },
        Trying {
            #[pin]
            trial: Trial<F, B>,
            attempt: Run,
            // When what is held counts as committed; when a failure is judged.
            until: Until,
        },
        /// Before another try.
        Waiting {
            at: Nanos,
            grant: Option<Grant<'static>>,
            pause: PauseGuard,
        },
        Over,
    }
}

/// Until when an answer is held, on the clock of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Until {
    pub(super) hold: Option<Nanos>,
    pub(super) error: Option<Nanos>,
}

impl<S, Q, B, C> Attempts<S, Q, B, C>
where
    S: Service<Request<ReplayBody>>,
    Q: Body + 'static,
    B: Body,
{
    pub(crate) fn new(request: Request<Q>, limit: usize, pilot: Pilot<S, C>) -> Self {
        let (head, body) = request.into_parts();
        let stage = match ReplayBody::try_from_body(body) {
            Ok(body) => Stage::Begin {
                request: Some(Request::from_parts(head, body)),
            },
            Err(body) => Stage::Upload {
                body: Buffering::new(body, limit),
                head: Some(head),
                pause: None,
            },
        };
        Self { stage, pilot }
    }
}

impl<S, Q, B, C> Future for Attempts<S, Q, B, C>
where
    S: Service<Request<ReplayBody>, Response = Response<B>> + Clone,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes>,
    Q::Error: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
    C: Chain,
{
    type Output = Result<Response<AttemptBody<B>>, BoxError>;

    /// # Panics
    ///
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // What fails at once, again and again, must leave others a turn.
        for _ in 0..TURNS {
            let turn = Turn::enter(cx.waker(), this.pilot.own());
            let turned = match this.stage.as_mut().poll(this.pilot, &turn, cx) {
                Poll::Ready(turned) => turned,
                Poll::Pending => ready!(this.stage.as_mut().pending(this.pilot, &turn, cx)),
            };
            drop(turn);
            let refused = match turned {
                Turned::Again => continue,
                Turned::Ready(admitted) => {
                    let admitted = Some(admitted);
                    this.stage.set(Stage::Readying { admitted });
                    continue;
                }
                Turned::Wait { at, grant } => {
                    let pause = this.pilot.own().pause();
                    this.stage.set(Stage::Waiting { at, grant, pause });
                    continue;
                }
                Turned::Try(admitted) => match this.pilot.call(admitted) {
                    Ok(started) => {
                        this.stage.set(Stage::trying(started));
                        continue;
                    }
                    Err(error) => error,
                },
                Turned::Done(result) => {
                    this.stage.set(Stage::Over);
                    this.pilot.finish();
                    return Poll::Ready(result);
                }
            };
            this.stage.set(Stage::Over);
            this.pilot.finish();
            return Poll::Ready(Err(this.pilot.refuse(refused)));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<F, Q, B: Body> Stage<F, Q, B> {
    #[inline]
    fn trying(started: Started<F>) -> Self {
        let Started {
            call,
            attempt,
            hold,
        } = started;
        Self::Trying {
            trial: Trial::new(call),
            attempt,
            until: Until { hold, error: None },
        }
    }
}

impl<F, Q, B> Stage<F, Q, B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn poll<S, C>(
        self: Pin<&mut Self>,
        pilot: &mut Pilot<S, C>,
        turn: &Turn,
        cx: &mut Context<'_>,
    ) -> Poll<Turned<B>>
    where
        S: Service<Request<ReplayBody>, Response = Response<B>, Future = F> + Clone,
        F: Future<Output = Result<Response<B>, S::Error>>,
        S::Error: Into<BoxError>,
        Q: Body<Data = Bytes>,
        Q::Error: Into<BoxError>,
        C: Chain,
    {
        match self.project() {
            StageProj::Upload { body, head, pause } => {
                if let Some(ended) = pilot.ended() {
                    return Poll::Ready(ended);
                }
                let Poll::Ready(body) = body.poll(cx) else {
                    pause.get_or_insert_with(|| pilot.own().pause());
                    pilot.yield_service();
                    return Poll::Pending;
                };
                Poll::Ready(match (body, head.take()) {
                    (Ok(body), Some(head)) => pilot.begin(Request::from_parts(head, body)),
                    (Err(error), _) => Turned::Done(Err(pilot.refuse(error))),
                    (Ok(_), None) => panic!("a body was read twice"),
                })
            }
            StageProj::Begin { request } => match request.take() {
                Some(request) => Poll::Ready(pilot.begin(request)),
                None => panic!("a response future was polled after it was ready"),
            },
            StageProj::Readying { admitted } => pilot.ready(admitted, turn.task(), cx),
            StageProj::Trying { trial, attempt, .. } => match trial.poll(cx) {
                Poll::Ready(outcome) => Poll::Ready(pilot.conclude(outcome, attempt, turn.task())),
                Poll::Pending => Poll::Pending,
            },
            StageProj::Waiting { at, grant, .. } => {
                if let Some(ended) = pilot.ended() {
                    return Poll::Ready(ended);
                }
                if nanos(pilot.own().at(turn.now())) < *at {
                    return Poll::Pending;
                }
                Poll::Ready(pilot.start(grant.take()))
            }
            StageProj::Over => panic!("a response future was polled after it was ready"),
        }
    }

    /// Everything below is pending.
    fn pending<S, C>(
        self: Pin<&mut Self>,
        pilot: &mut Pilot<S, C>,
        turn: &Turn,
        cx: &mut Context<'_>,
    ) -> Poll<Turned<B>>
    where
        S: Service<Request<ReplayBody>, Response = Response<B>, Future = F>,
        F: Future<Output = Result<Response<B>, S::Error>>,
        S::Error: Into<BoxError>,
        C: Chain,
    {
        let now = pilot.own().at(turn.now());
        let due = match self.project() {
            // Nobody below looks at the clocks.
            StageProj::Upload { .. } => return pilot.watch(None, None, turn, cx),
            StageProj::Readying { admitted } => {
                let attempt = admitted.as_ref().and_then(Admitted::attempt);
                return pilot.watch(attempt, None, turn, cx);
            }
            StageProj::Waiting { at, .. } => return pilot.watch(None, Some(*at), turn, cx),
            StageProj::Trying {
                trial,
                attempt,
                until,
            } => {
                let due = match trial.reading() {
                    None => None,
                    Some(reading) if reading.fails() => {
                        let limit = || nanos(now.saturating_add(ERROR_TIME));
                        Some(*until.error.get_or_insert_with(limit))
                    }
                    Some(_) => until.hold,
                };
                if due.is_some_and(|at| at <= nanos(now)) {
                    // A deadline of the call that has come goes first.
                    drop(attempt.node().check(now, turn.task()));
                    if let Some(ended) = pilot.ended() {
                        return Poll::Ready(ended);
                    }
                    if let Some(outcome) = trial.give_up() {
                        return Poll::Ready(pilot.conclude(outcome, attempt, turn.task()));
                    }
                }
                due
            }
            StageProj::Begin { .. } | StageProj::Over => None,
        };
        pilot.wait(due, turn, cx);
        Poll::Pending
    }
}

impl<S, Q, B, C> fmt::Debug for Attempts<S, Q, B, C>
where
    S: Service<Request<ReplayBody>>,
    B: Body,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempts")
            .field("run", self.pilot.own())
            .finish_non_exhaustive()
    }
}
