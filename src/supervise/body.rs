use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{
    observer::Observer,
    supervised_call::{StopCause, SupervisedCall},
};
use crate::{
    error::BoxError,
    llm::{WholeAnswer, failure::FailureClass},
    run::{Role, TaskId},
};

pin_project! {
    /// The response body of a layer that acts on a node.
    ///
    /// The body returns a [`Terminated`](crate::Terminated) if the node ends before the body, and
    /// has dropped the inner body by then.
    #[derive(Debug)]
    pub struct SupervisedBody<B>
    where
        B: Body,
    {
        // `None` after the inner body has ended or failed, or was cut.
        #[pin]
        inner: Option<B>,
        // `None` for an inert layer, which returns all frames unchanged.
        supervised: Option<SupervisedCall>,
    }

    impl<B> PinnedDrop for SupervisedBody<B>
    where
        B: Body,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let Some(supervised) = this.supervised else { return };
            let Some(inner) = this.inner.as_ref().as_pin_ref() else {
                return supervised.finish();
            };
            let whole = supervised.observer().is_none_or(|observer| observer.finish().is_ok());
            let complete = (inner.is_end_stream() && whole)
                || supervised.observer().is_some_and(Observer::is_complete);
            if !complete {
                // Store the reason first, so that the inner body can read it when it
                // drops.
                supervised.settings.part.dropped(&supervised.run);
            }
            this.inner.set(None);
            if complete {
                supervised.conclude();
            }
            supervised.finish();
        }
    }
}

impl<B: Body> SupervisedBody<B> {
    pub(super) const fn new(inner: B, supervised: SupervisedCall) -> Self {
        Self {
            inner: Some(inner),
            supervised: Some(supervised),
        }
    }

    /// Records on the node the stop reason that a fully buffered response states, and its usage if
    /// the run counts it. The layer's own count of the tokens needs no walk of the answer then.
    pub(crate) fn report(&mut self, answer: &WholeAnswer) {
        if let Some(supervised) = &mut self.supervised {
            supervised.take_stated(answer);
            let counts = supervised.observer().is_none_or(Observer::counts);
            let usage = answer.usage().filter(|_| counts);
            let stop_reason = answer.stop_reason().map(Arc::from);
            supervised.run.node().report(usage, stop_reason.as_ref());
        }
    }

    /// Drops the inner body, then settles the node, if this layer settles it, as failed with
    /// `class`.
    pub(crate) fn fail(self: Pin<&mut Self>, class: FailureClass) {
        let mut this = self.project();
        this.inner.set(None);
        if let Some(supervised) = this.supervised {
            supervised.fail(class);
        }
    }

    /// A body that has ended.
    pub(crate) const fn ended() -> Self {
        Self {
            inner: None,
            supervised: None,
        }
    }

    pub(super) const fn inert(inner: B) -> Self {
        Self {
            inner: Some(inner),
            supervised: None,
        }
    }
}

impl<B> Body for SupervisedBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
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
        let Some(supervised) = this.supervised else {
            return inner.poll_frame(cx).map_err(Into::into);
        };
        let role = Role::enter(cx.waker(), &supervised.run);
        if !role.is_inner() && supervised.is_over() {
            drop(role);
            this.inner.set(None);
            return Poll::Ready(Some(Err(supervised.over())));
        }
        let polled = supervised.unwinding(|| inner.poll_frame(cx));
        // Matched by reference: a frame is large, and most frames reach the caller unchanged.
        let why = match &polled {
            Poll::Ready(Some(Ok(frame))) => match supervised.frame(&role, frame) {
                Ok(()) => return polled.map_err(Into::into),
                Err(stop) => stop,
            },
            Poll::Ready(None) => match supervised.end() {
                Ok(()) => StopCause::Ended,
                Err(cut) => StopCause::Cut(cut),
            },
            // An error behind a whole answer takes nothing from it.
            Poll::Ready(Some(Err(_))) => match supervised.has_answer() {
                true => StopCause::Ended,
                false => StopCause::Failed,
            },
            Poll::Pending => match supervised.pending(&role, cx) {
                Poll::Ready(why) => why,
                Poll::Pending => {
                    // There is no frame to drop: without this each wait would look for one.
                    mem::forget(polled);
                    return Poll::Pending;
                }
            },
        };
        if let (StopCause::Ended, Some(observer)) = (&why, supervised.observer()) {
            observer.close();
        }
        let polled = polled.map_err(Into::into);
        let task = match supervised.observer() {
            // An outer layer reads the frames, and knows which of them reset a window.
            None if role.is_inner() => TaskId::NONE,
            _ => TaskId::of(cx.waker()),
        };
        drop(role);
        this.inner.set(None);
        Poll::Ready(supervised.stopped(why, task, polled).map(Err))
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            None => true,
            // A truncated stream has not ended for the caller: the body still has an
            // error to return.
            Some(inner) => {
                let observer = self.supervised.as_ref().and_then(SupervisedCall::observer);
                inner.is_end_stream() && observer.is_none_or(|observer| observer.finish().is_ok())
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
