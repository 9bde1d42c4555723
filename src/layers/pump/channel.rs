use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use tokio::{
    sync::{mpsc, oneshot},
    task::AbortHandle,
};

use crate::{error::BoxError, lock::Lock, run::Run};

/// The error if the task of a pump stopped before it sent an answer or the end of the body.
///
/// The cause is that the inner service panicked, or that the runtime is shutting down.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PumpStopped;

impl fmt::Display for PumpStopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("task of the call stopped without an answer")
    }
}

impl Error for PumpStopped {}

/// The first message of the task to the reader: the head of the answer, or the call's error.
pub(super) type HeadSender = Result<Response<Hint>, BoxError>;

/// The size hint and `is_end_stream` of the body before its first frame.
#[derive(Clone, Debug)]
pub(super) struct Hint {
    pub(super) size: SizeHint,
    pub(super) ended: bool,
}

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) frame: Frame<Bytes>,
    /// Whether the body's `is_end_stream` was true after this frame.
    pub(super) last: bool,
}

/// How the body ended, with or without an error; the reader takes it after all frames. It is not
/// sent through the channel, so a full channel does not delay it.
#[derive(Clone, Debug, Default)]
pub(super) struct PumpOutcome(Arc<Lock<Option<Result<(), BoxError>>>>);

impl PumpOutcome {
    pub(super) fn set(&self, outcome: Result<(), BoxError>) {
        *self.0.lock() = Some(outcome);
    }

    fn take(&self) -> Option<Result<(), BoxError>> {
        self.0.lock().take()
    }
}

/// Aborts the task when the reader is dropped, unless the call drains and has not ended.
#[derive(Debug)]
pub(super) struct AbortOnDrop {
    task: AbortHandle,
    /// The node of the call if the layer has a drain limit; `None` if it has none.
    drains: Option<Run>,
}

impl AbortOnDrop {
    pub(super) const fn new(task: AbortHandle, drains: Option<Run>) -> Self {
        Self { task, drains }
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        let reads_on = |run: &Run| run.node().is_draining() && !run.node().is_over();
        if !self.drains.as_ref().is_some_and(reads_on) {
            self.task.abort();
        }
    }
}

/// The reader's end of the task, before the head of the answer has arrived.
#[derive(Debug)]
pub struct HeadWaiter {
    pub(super) head: oneshot::Receiver<HeadSender>,
    pub(super) reader: Option<PumpReader>,
}

/// The reader's end of the task: the response body, from the head on.
#[derive(Debug)]
pub struct PumpReader {
    pub(super) frames: mpsc::Receiver<Piece>,
    pub(super) outcome: PumpOutcome,
    pub(super) size: SizeHint,
    pub(super) ended: bool,
    pub(super) _task: AbortOnDrop,
}

impl Future for HeadWaiter {
    type Output = Result<Response<PumpReader>, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let head = match ready!(Pin::new(&mut self.head).poll(cx)) {
            Ok(head) => head?,
            Err(_) => return Poll::Ready(Err(PumpStopped.into())),
        };
        let (parts, hint) = head.into_parts();
        let Some(mut reader) = self.reader.take() else {
            return Poll::Ready(Err(PumpStopped.into()));
        };
        reader.size = hint.size;
        reader.ended = hint.ended;
        Poll::Ready(Ok(Response::from_parts(parts, reader)))
    }
}

impl Body for PumpReader {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(Piece { frame, last }) = ready!(self.frames.poll_recv(cx)) else {
            if self.ended {
                return Poll::Ready(None);
            }
            self.ended = true;
            let outcome = self
                .outcome
                .take()
                .unwrap_or_else(|| Err(PumpStopped.into()));
            return Poll::Ready(outcome.err().map(Err));
        };
        self.ended = last;
        if let (Some(data), Some(left)) = (frame.data_ref(), self.size.exact()) {
            self.size = SizeHint::with_exact(left.saturating_sub(data.len() as u64));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        match (self.ended, self.size.exact()) {
            (true, _) => SizeHint::with_exact(0),
            (false, Some(_)) => self.size,
            (false, None) => SizeHint::default(),
        }
    }
}
