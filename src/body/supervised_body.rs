use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{Policy, Tap, supervision::Supervision};
use crate::{BoxError, run::Turn};

pin_project! {
    /// A response body under supervision.
    #[derive(Debug)]
    pub(crate) struct SupervisedBody<B, P>
    where
        P: Policy,
        B: Body,
    {
        // None once it ended, in whatever way.
        #[pin]
        inner: Option<B>,
        // None in an inert layer: frames pass as they are.
        supervision: Option<Supervision<P>>,
    }

    impl<B, P> PinnedDrop for SupervisedBody<B, P>
    where
        P: Policy,
        B: Body,
    {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            let Some(inner) = this.inner.as_ref().as_pin_ref() else { return };
            let Some(supervision) = this.supervision else { return };
            let complete = inner.is_end_stream()
                || supervision.tap.as_ref().is_some_and(Tap::is_complete);
            if !complete {
                // First the reason, so that what is dropped can read it.
                supervision.policy.dropped(&supervision.found);
            }
            this.inner.set(None);
            if complete {
                supervision.completed();
            } else {
                supervision.finish();
            }
        }
    }
}

impl<B: Body, P: Policy> SupervisedBody<B, P> {
    pub(super) const fn new(inner: B, supervision: Supervision<P>) -> Self {
        Self {
            inner: Some(inner),
            supervision: Some(supervision),
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
        let turn = Turn::enter(cx.waker());
        let Poll::Ready(frame) = inner.poll_frame(cx) else {
            ready!(supervision.pending(turn, cx));
            this.inner.set(None);
            return Poll::Ready(Some(Err(supervision.over())));
        };
        drop(turn);
        match frame {
            Some(Ok(frame)) => {
                let tap = supervision.tap.as_mut();
                if frame.is_trailers() {
                    if let Some(Err(cut)) = tap.map(|tap| tap.finish()) {
                        this.inner.set(None);
                        return Poll::Ready(Some(Err(supervision.failed(cut.into()))));
                    }
                    return Poll::Ready(Some(Ok(frame)));
                }
                let seen = tap.map(|tap| tap.frame(&frame));
                if supervision.frame(seen) {
                    this.inner.set(None);
                    return Poll::Ready(Some(Err(supervision.over())));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Some(Err(error)) => {
                this.inner.set(None);
                Poll::Ready(Some(Err(supervision.failed(error.into()))))
            }
            None => {
                this.inner.set(None);
                match supervision.tap.as_ref().map_or(Ok(()), Tap::finish) {
                    Ok(()) => {
                        supervision.completed();
                        Poll::Ready(None)
                    }
                    Err(cut) => Poll::Ready(Some(Err(supervision.failed(cut.into())))),
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            None => true,
            // A stream that was cut has an error to hand on yet.
            Some(inner) => {
                let tap = self.supervision.as_ref().and_then(|s| s.tap.as_ref());
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
