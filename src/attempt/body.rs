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
    run::Run,
    supervise::SupervisedBody,
};

pin_project! {
    /// The body of the answer that the caller gets: the held bytes unchanged, then the rest.
    #[project = BodyProj]
    #[derive(Debug)]
    pub struct AttemptBody<B>
    where
        B: Body,
    {
        pub(super) held: HeldPrefix,
        // The inner body; `None` once it has ended.
        #[pin]
        pub(super) inner: Option<SupervisedBody<B>>,
        // The node of the layer: the call, or an attempt of a layer further out.
        pub(super) own: Run,
        pub(super) ownership: Option<Ownership>,
        pub(super) completion: Option<Box<Completion>>,
        // Counts the brackets of a JSON document that is handed on before its end, to see there
        // whether it was cut.
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
    /// Drops the inner body, which settles the attempt; then settles the layer's node.
    ///
    /// The node ends as the attempt did, or as aborted if held bytes were not handed on.
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

    /// The error of a JSON document that ends with `polled` and is not whole.
    ///
    /// The error replaces the last frame: a server that has sent all announced bytes does
    /// not poll for more.
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
        if this.own.node().is_over() {
            // The caller gets no held byte of a node that has ended.
            this.close();
            return Poll::Ready(Some(Err(this.own.to_terminated().into())));
        }
        if !this.held.is_empty() || inner.is_end_stream() {
            // The inner body has nothing left in which it could report that the attempt was cut.
            if let Some(end) = this.ownership.as_ref().and_then(Ownership::cut) {
                // The node ends as its attempt did, and the caller gets no held byte.
                *this.held = HeldPrefix::default();
                this.close();
                return Poll::Ready(Some(Err(end.into())));
            }
        }
        let polled = if this.held.is_empty() {
            let polled = inner.poll_frame(cx);
            if let (Some(outline), Poll::Ready(Some(Ok(frame)))) = (&mut *this.document, &polled) {
                if let Some(data) = frame.data_ref() {
                    outline.push(data);
                }
            }
            polled
        } else if this.held.wants_flush() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        } else {
            Poll::Ready(this.held.next())
        };
        if let Some(cut) = this.cut(&polled) {
            this.close();
            return Poll::Ready(Some(Err(cut.into())));
        }
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            // The node settles now and not at the drop, so that a later end of the run changes
            // nothing.
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
        let held = self.held.len() as u64;
        let mut hint = inner.size_hint();
        if self.held.breaks() {
            // With an exact length a server would stop before it polls for the error, and
            // the held bytes would pass for the whole.
            hint = SizeHint::new();
        }
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(held));
        }
        hint.set_lower(hint.lower().saturating_add(held));
        hint
    }
}
