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
    body::AttemptBody,
    driver::{AttemptDriver, Next},
    policy::AttemptPolicy,
    state::AttemptState,
};
use crate::{
    body::{Buffering, ReplayBody},
    error::BoxError,
    run::PollScope,
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
