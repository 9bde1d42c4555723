//! Where a call stands, and what is looked at there.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    ERROR_TIME,
    admission::Admitted,
    budget::Permit,
    driver::{AttemptDriver, Next, Started},
    peek::Trial,
    policy::AttemptPolicy,
};
use crate::{
    body::{Buffering, ReplayBody},
    error::BoxError,
    run::{Nanos, PauseGuard, PollScope, Run, nanos},
};

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
