//! The future of a call that may make several attempts: a loop over its state.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    ERROR_TIME,
    body::AttemptBody,
    budget::Permit,
    decide::Admitted,
    driver::{AttemptDriver, Next, Started},
    peek::Trial,
    policy::AttemptPolicy,
};
use crate::{
    body::{Buffering, ReplayBody},
    error::BoxError,
    run::{Nanos, PauseGuard, PollScope, Run, nanos},
    supervise::Claim,
};

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
        stage: AttemptState<S::Future, Q, B>,
        pilot: AttemptDriver<S, C>,
    }

    impl<S, Q, B, C> PinnedDrop for Attempts<S, Q, B, C>
    where
        S: Service<Request<ReplayBody>>,
        B: Body,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // What is inside first: who opened its node speaks last.
            this.stage.set(AttemptState::Over);
            this.pilot.finish();
        }
    }
}

impl<S, Q, B, C> Attempts<S, Q, B, C>
where
    S: Service<Request<ReplayBody>>,
    Q: Body + 'static,
    B: Body,
{
    /// Begins a call of `service`, which was asked whether it is ready; a request
    /// body of more than `limit` bytes is an error.
    pub(crate) fn new(service: &mut S, mut request: Request<Q>, limit: usize, chain: C) -> Self
    where
        S: Clone,
    {
        let entry = Claim::of_call(&mut request);
        // The clone that stays has not been asked.
        let next = service.clone();
        let pilot = AttemptDriver::new(mem::replace(service, next), chain, entry);
        let (head, body) = request.into_parts();
        let stage = match ReplayBody::try_from_body(body) {
            Ok(body) => AttemptState::Begin {
                request: Some(Request::from_parts(head, body)),
            },
            Err(body) => AttemptState::Upload {
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
    C: AttemptPolicy,
{
    type Output = Result<Response<AttemptBody<B>>, BoxError>;

    /// # Panics
    ///
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // What fails at once, again and again, must leave others a turn.
        for _ in 0..TURNS {
            let turn = PollScope::enter(cx.waker(), this.pilot.own());
            let turned = match this.stage.as_mut().poll(this.pilot, &turn, cx) {
                Poll::Ready(turned) => turned,
                Poll::Pending => ready!(this.stage.as_mut().pending(this.pilot, &turn, cx)),
            };
            drop(turn);
            let refused = match turned {
                Next::Again => continue,
                Next::Ready(admitted) => {
                    let admitted = Some(admitted);
                    this.stage.set(AttemptState::Readying { admitted });
                    continue;
                }
                Next::Wait { at, grant } => {
                    let pause = this.pilot.own().pause();
                    this.stage.set(AttemptState::Waiting { at, grant, pause });
                    continue;
                }
                Next::Try(admitted) => match this.pilot.call(admitted) {
                    Ok(started) => {
                        this.stage.set(AttemptState::trying(started));
                        continue;
                    }
                    Err(error) => error,
                },
                Next::Done(result) => {
                    this.stage.set(AttemptState::Over);
                    this.pilot.finish();
                    return Poll::Ready(result);
                }
            };
            this.stage.set(AttemptState::Over);
            this.pilot.finish();
            return Poll::Ready(Err(this.pilot.refuse(refused)));
        }
        cx.waker().wake_by_ref();
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

pin_project! {
    #[project = StageProj]
    pub(super) enum AttemptState<F, Q, B>
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
            grant: Option<Permit<'static>>,
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

impl<F, Q, B: Body> AttemptState<F, Q, B> {
    #[inline]
    pub(super) fn trying(started: Started<F>) -> Self {
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

impl<F, Q, B> AttemptState<F, Q, B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    pub(super) fn poll<S, C>(
        self: Pin<&mut Self>,
        pilot: &mut AttemptDriver<S, C>,
        turn: &PollScope,
        cx: &mut Context<'_>,
    ) -> Poll<Next<B>>
    where
        S: Service<Request<ReplayBody>, Response = Response<B>, Future = F> + Clone,
        F: Future<Output = Result<Response<B>, S::Error>>,
        S::Error: Into<BoxError>,
        Q: Body<Data = Bytes>,
        Q::Error: Into<BoxError>,
        C: AttemptPolicy,
    {
        match self.project() {
            StageProj::Upload { body, head, pause } => {
                if let Some(ended) = pilot.idle() {
                    return Poll::Ready(ended);
                }
                let Poll::Ready(body) = body.poll(cx) else {
                    pause.get_or_insert_with(|| pilot.own().pause());
                    pilot.own().node().payload.set_refused(true);
                    pilot.yield_service();
                    return Poll::Pending;
                };
                pilot.own().node().payload.set_refused(body.is_err());
                Poll::Ready(match (body, head.take()) {
                    (Ok(body), Some(head)) => pilot.begin(Request::from_parts(head, body)),
                    (Err(error), _) => Next::Done(Err(pilot.refuse(error))),
                    (Ok(_), None) => panic!("a body was read twice"),
                })
            }
            StageProj::Begin { request } => match request.take() {
                Some(request) => Poll::Ready(pilot.begin(request)),
                None => panic!("a response future was polled after it was ready"),
            },
            StageProj::Readying { admitted } => pilot.ready(admitted, turn.task(), cx),
            StageProj::Trying { trial, attempt, .. } => match trial.poll(&pilot.chain, cx) {
                Poll::Ready(outcome) => Poll::Ready(pilot.conclude(outcome, attempt, turn.task())),
                Poll::Pending => Poll::Pending,
            },
            StageProj::Waiting { at, grant, .. } => {
                if let Some(ended) = pilot.idle() {
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
    pub(super) fn pending<S, C>(
        self: Pin<&mut Self>,
        pilot: &mut AttemptDriver<S, C>,
        turn: &PollScope,
        cx: &mut Context<'_>,
    ) -> Poll<Next<B>>
    where
        S: Service<Request<ReplayBody>, Response = Response<B>, Future = F>,
        F: Future<Output = Result<Response<B>, S::Error>>,
        S::Error: Into<BoxError>,
        C: AttemptPolicy,
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
                    if let Some(outcome) = trial.give_up(pilot.chain.judgement()) {
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
