use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;

use super::{
    body::SupervisedBody,
    policy::{Claim, Policy},
    supervisor::Supervisor,
};
use crate::{
    error::BoxError,
    run::{PollScope, TaskId},
};

pin_project! {
    /// The response future of a layer that acts on a node; `P` is the layer's.
    ///
    /// # Errors
    ///
    /// A [`Terminated`](crate::Terminated) once the node is over, with the inner
    /// error as its source if there was one; else the inner error.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct SupervisedFuture<F, P>
    where
        P: Policy,
    {
        // None once it is over, or if the call was refused.
        #[pin]
        inner: Option<F>,
        watch: ClaimState<P>,
    }

    impl<F, P> PinnedDrop for SupervisedFuture<F, P>
    where
        P: Policy,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if let ClaimState::Node(supervision) = this.watch {
                if this.inner.is_some() {
                    // First the reason, so that what is dropped can read it.
                    supervision.policy.dropped(&supervision.found);
                    this.inner.set(None);
                }
                supervision.finish();
            }
        }
    }
}

#[derive(Debug)]
enum ClaimState<P> {
    Node(Supervisor<P>),
    /// An inert layer: the answer passes as it is.
    Nothing,
    /// An error to answer without a call.
    Refused(BoxError),
    /// The future was ready.
    Done,
}

impl<F, P: Policy> SupervisedFuture<F, P> {
    /// Watches over the call that `call` makes; it is not made if the node is
    /// over already, and the first poll answers why.
    #[inline]
    pub(crate) fn new<B>(
        entry: Claim,
        policy: P,
        request: Request<B>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> Self {
        let mut future = Self {
            inner: None,
            watch: ClaimState::Node(Supervisor::new(entry, policy, &request)),
        };
        if matches!(&future.watch, ClaimState::Node(supervision) if !supervision.is_over()) {
            future.inner = Some(call(request));
        }
        future
    }

    /// Passes everything on unchanged.
    pub(crate) const fn inert(inner: F) -> Self {
        Self {
            inner: Some(inner),
            watch: ClaimState::Nothing,
        }
    }

    /// Answers an error without a node and without a call.
    pub(crate) const fn refused(error: BoxError) -> Self {
        Self {
            inner: None,
            watch: ClaimState::Refused(error),
        }
    }
}

impl<F, P, B, E> Future for SupervisedFuture<F, P>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
    P: Policy,
{
    type Output = Result<Response<SupervisedBody<B, P>>, BoxError>;

    /// # Panics
    ///
    /// If polled again after it was ready.
    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let (ClaimState::Node(supervision), Some(inner)) =
            (&mut *this.watch, this.inner.as_mut().as_pin_mut())
        {
            if !supervision.is_over() {
                let turn = PollScope::enter(cx.waker(), supervision.found());
                match inner.poll(cx) {
                    Poll::Ready(Ok(mut answer)) => {
                        drop(turn);
                        if supervision.is_cut() {
                            this.inner.set(None);
                            return Poll::Ready(Err(this.watch.over()));
                        }
                        supervision.answered(&mut answer);
                        this.inner.set(None);
                        return Poll::Ready(Ok(this.watch.hand_over(answer)));
                    }
                    Poll::Ready(Err(error)) => {
                        let task = turn.task();
                        drop(turn);
                        this.inner.set(None);
                        return Poll::Ready(Err(this.watch.failed(error.into(), task)));
                    }
                    Poll::Pending => {
                        ready!(supervision.pending(&turn, cx));
                    }
                }
            }
            this.inner.set(None);
            return Poll::Ready(Err(this.watch.over()));
        }
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            return Poll::Ready(Err(this.watch.over()));
        };
        let answer = ready!(inner.poll(cx));
        this.inner.set(None);
        let answer = answer.map(|answer| answer.map(SupervisedBody::inert));
        Poll::Ready(answer.map_err(Into::into))
    }
}

impl<P: Policy> ClaimState<P> {
    /// The supervision goes from the future into the body.
    #[inline]
    fn hand_over<B: Body>(&mut self, answer: Response<B>) -> Response<SupervisedBody<B, P>> {
        let (parts, body) = answer.into_parts();
        let body = match std::mem::replace(self, Self::Done) {
            Self::Node(supervision) => SupervisedBody::new(body, supervision),
            _ => SupervisedBody::inert(body),
        };
        Response::from_parts(parts, body)
    }

    #[cold]
    fn failed(&mut self, error: BoxError, task: TaskId) -> BoxError {
        match std::mem::replace(self, Self::Done) {
            Self::Node(mut supervision) => supervision.failed(error, task),
            _ => error,
        }
    }

    #[cold]
    fn over(&mut self) -> BoxError {
        match std::mem::replace(self, Self::Done) {
            Self::Node(mut supervision) => supervision.over(),
            Self::Refused(error) => error,
            Self::Nothing | Self::Done => {
                panic!("a response future was polled after it was ready")
            }
        }
    }
}
