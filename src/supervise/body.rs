use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{
    observer::Observer,
    policy::Policy,
    supervisor::{StopCause, Supervisor},
};
use crate::{
    error::BoxError,
    llm::{dialect::Usage, failure::FailureClass},
    run::PollScope,
};

pin_project! {
    /// The response body of a layer that acts on a node; `P` is the layer's.
    ///
    /// It ends with a [`Terminated`](crate::Terminated) when the node does, and
    /// has dropped the inner body by then.
    #[derive(Debug)]
    pub struct SupervisedBody<B, P>
    where
        P: Policy,
        B: Body,
    {
        // None once it ended, in whatever way.
        #[pin]
        inner: Option<B>,
        // None in an inert layer: frames pass as they are.
        supervision: Option<Supervisor<P>>,
    }

    impl<B, P> PinnedDrop for SupervisedBody<B, P>
    where
        P: Policy,
        B: Body,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let Some(supervision) = this.supervision else { return };
            let Some(inner) = this.inner.as_ref().as_pin_ref() else {
                return supervision.finish();
            };
            let whole = supervision.tap().is_none_or(|tap| tap.finish().is_ok());
            let complete = (inner.is_end_stream() && whole)
                || supervision.tap().is_some_and(Observer::is_complete);
            if !complete {
                // First the reason, so that what is dropped can read it.
                supervision.policy.dropped(&supervision.found);
            }
            this.inner.set(None);
            if complete {
                supervision.completed();
            }
            supervision.finish();
        }
    }
}

impl<B: Body, P: Policy> SupervisedBody<B, P> {
    pub(super) const fn new(inner: B, supervision: Supervisor<P>) -> Self {
        Self {
            inner: Some(inner),
            supervision: Some(supervision),
        }
    }

    /// The answer, which somebody holds whole, said this of itself.
    pub(crate) fn report(&self, usage: Option<Usage>) {
        if let Some(supervision) = &self.supervision {
            let counts = supervision.tap().is_none_or(Observer::counts);
            supervision.found.report(usage.filter(|_| counts), None);
        }
    }

    /// The answer failed so, and nothing more of it is handed on.
    pub(crate) fn fail(self: Pin<&mut Self>, class: FailureClass) {
        let mut this = self.project();
        this.inner.set(None);
        if let Some(supervision) = this.supervision {
            supervision.fail(class);
        }
    }

    pub(super) const fn inert(inner: B) -> Self {
        Self {
            inner: Some(inner),
            supervision: None,
        }
    }
}

impl<B, P> Body for SupervisedBody<B, P>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
    P: Policy,
{
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            return Poll::Ready(None);
        };
        let Some(supervision) = this.supervision else {
            return inner.poll_frame(cx).map_err(Into::into);
        };
        if supervision.is_over() {
            this.inner.set(None);
            return Poll::Ready(Some(Err(supervision.over())));
        }
        let turn = PollScope::enter(cx.waker(), supervision.found());
        let polled = inner.poll_frame(cx).map_err(Into::into);
        // Looked at where it lies: a frame is large, and most are handed on.
        let why = match &polled {
            Poll::Ready(Some(Ok(frame))) => match supervision.frame(frame) {
                Ok(()) => return polled,
                Err(stop) => stop,
            },
            Poll::Ready(None) => match supervision.tap().map_or(Ok(()), Observer::finish) {
                Ok(()) => StopCause::Ended,
                Err(cut) => StopCause::Cut(cut),
            },
            Poll::Ready(Some(Err(_))) => StopCause::Failed,
            Poll::Pending => ready!(supervision.pending(&turn, cx)),
        };
        this.inner.set(None);
        Poll::Ready(supervision.stopped(why, turn.task(), polled).map(Err))
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            None => true,
            // A stream that was cut has an error to hand on yet.
            Some(inner) => {
                let tap = self.supervision.as_ref().and_then(Supervisor::tap);
                inner.is_end_stream() && tap.is_none_or(|tap| tap.finish().is_ok())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
