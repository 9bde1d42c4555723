//! The body of the answer that the caller gets.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::{
    denial::Denial,
    failed_attempts::FailedAttempts,
    peek::{HeldBody, HeldBodyProj},
    settle::{Completion, Ownership},
};
use crate::{
    body::HeldPrefix,
    error::BoxError,
    llm::failure::{FailureClass, IncompleteJson},
    run::{Run, TaskGuard, Terminated},
    supervise::SupervisedBody,
};

/// The body of the answer that a retry or fallback layer returns. It has the held bytes, unchanged,
/// then the rest of the attempt's body.
#[derive(Debug)]
pub struct AttemptBody<B>
where
    B: Body,
{
    /// The attempt's body and the held bytes; `None` after the end or an error.
    pub(super) content: Option<Pin<Box<HeldBody<SupervisedBody<B>>>>>,
    /// The node that the layer acts on, below which it opened the attempt.
    pub(super) own: Run,
    pub(super) ownership: Option<Ownership>,
    pub(super) completion: Option<Box<Completion>>,
}

/// The result of a poll of a body with frames of `T`.
type Polled<T> = Poll<Option<Result<Frame<T>, BoxError>>>;

impl<B: Body> Drop for AttemptBody<B> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<B: Body> AttemptBody<B> {
    /// Drops the inner body, which settles the attempt. Then settles the layer's node, if the layer
    /// owns it, and reports the attempt's end. The node counts the report as work.
    ///
    /// The layer's node settles as aborted if the caller misses held bytes or the held error.
    /// Otherwise [`Ownership::settle`] chooses the reason.
    fn close(&mut self) {
        let content = self.content.take();
        let is_delivered = content
            .as_ref()
            .is_none_or(|content| content.held.is_delivered());
        drop(content);
        let completion = self.completion.take();
        let reports = completion.as_ref().is_some_and(|it| it.report.is_some());
        let _counted = reports.then(|| TaskGuard::new(self.own.clone()));
        if let Some(ownership) = self.ownership.take() {
            if is_delivered {
                ownership.settle();
            }
        }
        if let Some(completion) = completion {
            completion.notify();
        }
    }

    /// The end of the layer's node. If the node lives and the layer owns it, the
    /// [cut](Ownership::cut) of the attempt; `None` without either.
    fn end(own: &Run, ownership: Option<&Ownership>) -> Option<Terminated> {
        if own.node().is_over() {
            return Some(own.to_terminated());
        }
        ownership.and_then(Ownership::cut)
    }

    /// Closes the body after an error, and returns the error for the reader.
    ///
    /// A node that this layer settles is settled now and not at the drop of the body. Otherwise an
    /// end of the run in between would replace the answer's own end. If the layer's node has ended
    /// before, the error reports that end, even if the attempt ended first: the reader has not seen
    /// the attempt's end yet.
    #[cold]
    fn broke<T>(&mut self, polled: Polled<T>) -> Polled<T> {
        let polled = polled.map_err(|error| match self.own.node().is_over() {
            true => self.own.end_error(error),
            false => Self::explain(&self.own, error),
        });
        self.close();
        polled
    }

    /// Stores that no attempt follows a failure after the commit, unless another reason is stored,
    /// and gives the error that reason. Does nothing if the layer's node has ended: then the failure
    /// is not an attempt's.
    fn explain(own: &Run, error: BoxError) -> BoxError {
        if own.node().is_over() {
            return error;
        }
        if FailedAttempts::of(own).is_none_or(|tries| tries.denied().next().is_none()) {
            FailedAttempts::deny(own, Denial::Committed, false);
        }
        FailedAttempts::explain(own, error)
    }

    /// Fails the attempt and returns an error if `polled` is the end of an incomplete JSON
    /// document.
    ///
    /// The error replaces the last frame: a server that has sent all announced bytes does not poll
    /// the body again.
    fn cut(&mut self, polled: &Polled<Bytes>) -> Option<IncompleteJson>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let HeldBodyProj {
            held,
            body,
            document,
        } = self.content.as_mut()?.as_mut().project();
        let outline = document.as_ref()?;
        let is_last = match polled {
            Poll::Pending | Poll::Ready(Some(Err(_))) => false,
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(frame))) => {
                let nothing_follows = body.is_end_stream() || body.size_hint().exact() == Some(0);
                frame.is_trailers() || held.is_empty() && nothing_follows
            }
        };
        if !is_last || outline.is_whole() {
            return None;
        }
        body.fail(FailureClass::Transport);
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
    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Polled<Bytes> {
        let this = self.get_mut();
        let Some(content) = &mut this.content else {
            return Poll::Ready(None);
        };
        let HeldBodyProj {
            held,
            body,
            document,
        } = content.as_mut().project();
        let end = || Self::end(&this.own, this.ownership.as_ref());
        let is_held = !held.is_empty();
        let polled = if !is_held {
            body.poll_frame(cx)
        } else if end().is_some() {
            Poll::Ready(None)
        } else {
            held.poll_next(cx)
        };
        match &polled {
            Poll::Pending => return polled,
            Poll::Ready(Some(Ok(frame))) => {
                let Some(outline) = document else {
                    return polled;
                };
                if let (Some(data), false) = (frame.data_ref(), is_held) {
                    outline.push(data);
                }
            }
            Poll::Ready(Some(Err(_))) => return this.broke(polled),
            // `None` alone does not mean a complete answer: the attempt or the layer's node may
            // have ended while held bytes were left, or after the attempt's body was read.
            Poll::Ready(None) => {
                if let Some(end) = end() {
                    *held = HeldPrefix::default();
                    let error = Self::explain(&this.own, end.into());
                    this.close();
                    return Poll::Ready(Some(Err(error)));
                }
            }
        }
        if let Some(cut) = this.cut(&polled) {
            let error = Self::explain(&this.own, cut.into());
            this.close();
            return Poll::Ready(Some(Err(error)));
        }
        if matches!(polled, Poll::Ready(None)) {
            // A node that this layer settles is settled now and not at the drop of the body.
            // Otherwise an end of the run in between would replace the answer's own end.
            this.close();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Some(content) => content.held.is_empty() && content.body.is_end_stream(),
            None => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        let Some(content) = &self.content else {
            return SizeHint::with_exact(0);
        };
        content.held.size_hint(&content.body.size_hint())
    }
}
