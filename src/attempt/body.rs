//! The body of the answer that the caller gets.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::settle::{Completion, Ownership};
use crate::{
    body::HeldPrefix,
    error::BoxError,
    llm::failure::{FailureClass, IncompleteJson, JsonOutline},
    run::{Run, Terminated},
    supervise::SupervisedBody,
};

pin_project! {
    /// The body of the answer that the layer returns: the held bytes, unchanged, then the rest of
    /// the attempt's body.
    #[project = BodyProj]
    #[derive(Debug)]
    pub struct AttemptBody<B>
    where
        B: Body,
    {
        pub(super) held: HeldPrefix,
        // The attempt's body; `None` once it has ended or failed, or the layer's node is over.
        #[pin]
        pub(super) inner: Option<SupervisedBody<B>>,
        // The node of the layer: the call, or an attempt of a layer further out.
        pub(super) own: Run,
        pub(super) ownership: Option<Ownership>,
        pub(super) completion: Option<Box<Completion>>,
        // Counts the brackets of a JSON answer that was committed before its end, to detect at the
        // end that the document is incomplete; `None` for other answers.
        pub(super) document: Option<JsonOutline>,
    }

    impl<B> PinnedDrop for AttemptBody<B>
    where
        B: Body,
    {
        fn drop(this: Pin<&mut Self>) {
            this.project().close();
        }
    }
}

impl<B: Body> BodyProj<'_, B> {
    /// Drops the inner body, which settles the attempt; then settles the layer's node, if the layer
    /// owns it, and notifies the observer.
    ///
    /// The node ends for the failure that the layer returned, or else as the attempt did. It ends
    /// as aborted if the caller has not received all held bytes.
    fn close(&mut self) {
        self.inner.set(None);
        if let Some(ownership) = self.ownership.take() {
            if self.held.is_delivered() {
                ownership.settle();
            }
        }
        if let Some(completion) = self.completion.take() {
            completion.notify();
        }
    }

    /// The end of the layer's node, or of its attempt, if that was ended early.
    fn end(&self) -> Option<Terminated> {
        if self.own.node().is_over() {
            return Some(self.own.to_terminated());
        }
        self.ownership.as_ref().and_then(Ownership::cut)
    }

    /// Fails the attempt and answers an error if `polled` is the end of an incomplete JSON
    /// document.
    ///
    /// The error replaces the last frame: a server that has sent all announced bytes does not poll
    /// the body again.
    fn cut(
        &mut self,
        polled: &Poll<Option<Result<Frame<Bytes>, BoxError>>>,
    ) -> Option<IncompleteJson>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let outline = self.document.as_ref()?;
        let inner = self.inner.as_mut().as_pin_mut()?;
        let is_last = match polled {
            Poll::Pending | Poll::Ready(Some(Err(_))) => false,
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(frame))) => {
                let nothing_follows = inner.is_end_stream() || inner.size_hint().exact() == Some(0);
                frame.is_trailers() || self.held.is_empty() && nothing_follows
            }
        };
        if !is_last || outline.is_whole() {
            return None;
        }
        inner.fail(FailureClass::Transport);
        Some(IncompleteJson::new(outline.bytes()))
    }
}

impl<B> Body for AttemptBody<B>
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
        let is_held = !this.held.is_empty();
        let polled = if !is_held {
            inner.poll_frame(cx)
        } else if this.end().is_some() {
            Poll::Ready(None)
        } else {
            this.held.poll_next(cx)
        };
        match &polled {
            Poll::Pending => return polled,
            Poll::Ready(Some(Ok(frame))) => {
                let Some(outline) = &mut *this.document else {
                    return polled;
                };
                if let (Some(data), false) = (frame.data_ref(), is_held) {
                    outline.push(data);
                }
            }
            Poll::Ready(Some(Err(_))) => {}
            // The body of an attempt that has ended does not say that its attempt, or the
            // layer's node, was ended early.
            Poll::Ready(None) => {
                if let Some(end) = this.end() {
                    *this.held = HeldPrefix::default();
                    this.close();
                    return Poll::Ready(Some(Err(end.into())));
                }
            }
        }
        if let Some(cut) = this.cut(&polled) {
            this.close();
            return Poll::Ready(Some(Err(cut.into())));
        }
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            // The layer's node settles now and not at the drop of the body: an end of the run in
            // between would replace the answer's own end.
            this.close();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Some(inner) => self.held.is_empty() && inner.is_end_stream(),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        let Some(inner) = &self.inner else {
            return SizeHint::with_exact(0);
        };
        self.held.size_hint(&inner.size_hint())
    }
}
