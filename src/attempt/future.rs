//! The future of a call that may make several attempts: a loop over its state.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    ERROR_TIME,
    body::AttemptBody,
    budget::Permit,
    decision::Admitted,
    driver::{AttemptDriver, Next},
    peek::Peek,
    policy::AttemptPolicy,
};
use crate::{
    body::ReplayBody,
    error::BoxError,
    run::{Nanos, PauseGuard, PollScope, Run, TaskId, nanos},
    supervise::{Claim, Upload},
};

/// The most states that one poll of a call drives; then the future wakes itself and returns
/// `Pending`.
const MAX_STATES: usize = 64;

/// The response future of a layer that may make more than one attempt.
///
/// # Errors
///
/// A [`Terminated`](crate::Terminated) once the layer's node has ended, or is closing while no
/// attempt runs, with the last attempt's error as its source if there was one. Otherwise the error
/// of the last attempt, or of a request that cannot be sent to any upstream. If attempts have
/// failed, that error is the source of one in which
/// [`FailedAttempts::find`](crate::attempt::FailedAttempts::find) finds them.
///
/// # Cancel safety
///
/// Dropping the future drops the attempt that is under way; none follows.
#[must_use = "futures do nothing unless polled"]
pub struct Attempts<S, Q, B, C>
where
    S: Service<Request<ReplayBody>>,
    B: Body,
{
    // The loop is boxed, because it is large, and each outer layer moves its future twice.
    attempts: Pin<Box<AttemptLoop<S, Q, B, C>>>,
}

pin_project! {
    struct AttemptLoop<S, Q, B, C>
    where
        S: Service<Request<ReplayBody>>,
        B: Body,
    {
        #[pin]
        state: AttemptState<S::Future, Q, B>,
        driver: AttemptDriver<S, C>,
    }

    impl<S, Q, B, C> PinnedDrop for AttemptLoop<S, Q, B, C>
    where
        S: Service<Request<ReplayBody>>,
        B: Body,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            // Drop the attempt first: the layer's node must settle after the nodes below it.
            this.state.set(AttemptState::Over);
            this.driver.release();
        }
    }
}

impl<S, Q, B, C> Attempts<S, Q, B, C>
where
    S: Service<Request<ReplayBody>>,
    Q: Body + 'static,
    B: Body,
    C: AttemptPolicy,
{
    /// Begins a call of `service`, which is ready.
    ///
    /// The call fails if the request body has more than the policy's `max_body` bytes. The limit
    /// does not apply to a body that is a [`ReplayBody`] already.
    pub(crate) fn new(service: &mut S, mut request: Request<Q>, policy: C) -> Self
    where
        S: Clone,
    {
        let claim = Claim::of_call(&mut request);
        claim.run.attempts().mark_outer();
        #[cfg(feature = "metrics")]
        if claim.settles {
            let node = claim.run.node();
            node.name_operation(|| crate::supervise::operation_of(&request));
        }
        let max_body = policy.settings().max_body;
        // The caller keeps a clone, which is not ready; the call takes the ready service.
        let next = service.clone();
        let driver = AttemptDriver::new(mem::replace(service, next), policy, claim);
        let upload = Upload::new(request, max_body);
        let state = AttemptState::Upload { upload };
        Self {
            attempts: Box::pin(AttemptLoop { state, driver }),
        }
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
        let mut this = self.get_mut().attempts.as_mut().project();
        // The loop is bounded: attempts that fail at once must not starve other tasks.
        for _ in 0..MAX_STATES {
            let scope = PollScope::enter(cx.waker(), &this.driver.own);
            let next = ready!(this.state.as_mut().poll(this.driver, &scope, cx));
            drop(scope);
            match next {
                Next::Again => {}
                Next::Ready(admitted) => {
                    let admitted = Some(admitted);
                    this.state.set(AttemptState::Readying { admitted });
                }
                Next::Wait { until, permit } => {
                    let pause = this.driver.own.pause();
                    this.state.set(AttemptState::Waiting {
                        until,
                        permit,
                        pause,
                    });
                }
                Next::Call(admitted) => match this.driver.call(admitted) {
                    Ok((call, attempt)) => this.state.set(AttemptState::Calling {
                        peek: Peek::Calling { call },
                        commit_at: this.driver.commit_deadline(&attempt),
                        classify_at: None,
                        attempt,
                    }),
                    Err(error) => {
                        this.state.set(AttemptState::Over);
                        this.driver.release();
                        let error = this.driver.refuse(error);
                        return Poll::Ready(Err(this.driver.wrap(error)));
                    }
                },
                Next::Done(result) => {
                    this.state.set(AttemptState::Over);
                    this.driver.release();
                    return Poll::Ready(result.map_err(|error| this.driver.wrap(error)));
                }
            }
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
            .field("run", &self.attempts.driver.own)
            .finish_non_exhaustive()
    }
}

pin_project! {
    #[project = StateProj]
    enum AttemptState<F, Q, B>
    where
        B: Body,
    {
        /// The request's body is being buffered.
        Upload {
            #[pin]
            upload: Upload<Q>,
        },
        /// The service is polled until it is ready.
        Readying { admitted: Option<Admitted> },
        /// An attempt of the call is under way.
        Calling {
            #[pin]
            peek: Peek<F, B>,
            attempt: Run,
            // The time at which a held answer commits without content; `None` if no `hold` is set.
            commit_at: Option<Nanos>,
            // The time at which a failed answer is classified from its held part: `ERROR_TIME`
            // after the first poll that found it incomplete.
            classify_at: Option<Nanos>,
        },
        /// The call waits before another attempt.
        Waiting {
            until: Nanos,
            permit: Option<Permit<'static>>,
            pause: PauseGuard,
        },
        Over,
    }
}

impl<F, Q, B> AttemptState<F, Q, B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn poll<S, C>(
        self: Pin<&mut Self>,
        driver: &mut AttemptDriver<S, C>,
        scope: &PollScope,
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
            StateProj::Upload { upload } => {
                if let Some(ended) = driver.ended_or_closing() {
                    return Poll::Ready(ended);
                }
                let Poll::Ready(request) = upload.poll(&driver.own, cx) else {
                    driver.yield_service();
                    return driver.watch(None, None, scope, cx);
                };
                Poll::Ready(match request {
                    Ok(request) => driver.begin(request),
                    Err(error) => Next::Done(Err(driver.refuse(error))),
                })
            }
            StateProj::Readying { admitted } => driver.ready(admitted, scope, cx),
            StateProj::Calling {
                mut peek,
                attempt,
                commit_at,
                classify_at,
            } => {
                let polled = peek.as_mut().poll(&driver.own, &driver.policy, cx);
                let task = TaskId::of(cx.waker());
                if let Poll::Ready(outcome) = polled {
                    return Poll::Ready(driver.conclude(outcome, attempt, task));
                }
                let now = PollScope::now(&driver.own);
                let due = match peek.reads_failure() {
                    None => None,
                    Some(false) => *commit_at,
                    Some(true) => {
                        let limit = || nanos(now.saturating_add(ERROR_TIME));
                        Some(*classify_at.get_or_insert_with(limit))
                    }
                };
                if due.is_some_and(|at| at <= nanos(now)) {
                    // A deadline of the layer's node at this instant wins over the commit.
                    drop(attempt.node().check(now, task));
                    if let Some(ended) = driver.ended() {
                        return Poll::Ready(ended);
                    }
                    if let Some(outcome) = peek.give_up(&driver.own, &driver.policy) {
                        return Poll::Ready(driver.conclude(outcome, attempt, task));
                    }
                }
                driver.wait(due, scope, cx);
                Poll::Pending
            }
            StateProj::Waiting { until, permit, .. } => {
                if let Some(ended) = driver.ended_or_closing() {
                    return Poll::Ready(ended);
                }
                if nanos(PollScope::now(&driver.own)) < *until {
                    return driver.watch(None, Some(*until), scope, cx);
                }
                Poll::Ready(driver.start(permit.take()))
            }
            StateProj::Over => panic!("polled after completion"),
        }
    }
}
