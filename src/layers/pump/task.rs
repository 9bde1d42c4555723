use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use http_body_util::BodyExt;
use pin_project_lite::pin_project;
use tokio::{
    sync::{mpsc, oneshot},
    task::yield_now,
};

use super::channel::{HeadSender, Hint, Piece, PumpOutcome};
use crate::{
    error::BoxError,
    run::{Run, TaskGuard, TerminalReason},
    supervise::{TaskTimer, poll_until_end},
};

/// The number of discarded frames after which the task yields.
///
/// A task that discards frames waits for no channel, and a body that is always ready must not
/// starve the clocks.
const YIELD_EVERY: u8 = 16;

/// The task's end of the channel to the reader.
pub(super) struct Writer {
    pub(super) run: Run,
    /// Whether the layer has a drain limit, so that the task may read on without a reader.
    pub(super) drains: bool,
    pub(super) head: oneshot::Sender<HeadSender>,
    pub(super) frames: mpsc::Sender<Piece>,
    pub(super) outcome: PumpOutcome,
}

/// Waits for one future after another, or for the end of the node, with one timer and waiter.
struct EndWait {
    run: Run,
    timer: TaskTimer,
}

impl EndWait {
    /// Waits for `future`, or until the node has ended.
    ///
    /// # Errors
    ///
    /// If the node has ended. The task sends this error to the reader, which may be polled before
    /// the end has reached the node that the reader checks.
    async fn until_end<F: Future>(&mut self, future: Pin<&mut F>) -> Result<F::Output, BoxError> {
        let mut future = future;
        let waited =
            poll_fn(|cx| poll_until_end(&mut self.timer, &self.run, None, future.as_mut(), cx));
        waited.await.map_err(Into::into)
    }

    /// Whether the task reads on without a reader, because the node drains.
    fn reads_on(&self, drains: bool) -> bool {
        drains && self.run.node().is_draining()
    }
}

impl Drop for EndWait {
    fn drop(&mut self) {
        self.timer.release(&self.run);
    }
}

pin_project! {
    /// The future of the task of one call, which counts as work on the node until it is dropped.
    pub(super) struct PumpTask<F> {
        #[pin]
        work: F,
        // Declared last, so that the task leaves the node after the call and the body are dropped.
        guard: TaskGuard,
    }
}

impl<F> PumpTask<F> {
    pub(super) const fn new(work: F, guard: TaskGuard) -> Self {
        Self { work, guard }
    }
}

impl<F: Future<Output = ()>> Future for PumpTask<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.project().work.poll(cx)
    }
}

/// Drives one call from its start to the end of its body.
///
/// The function returns early once the node has ended or the reader has left, which drops the call
/// or the body. If the reader has left and the call drains, the function reads on and discards the
/// frames.
pub(super) async fn pump<F, B, E>(call: F, writer: Writer)
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let Writer {
        run,
        drains,
        head,
        frames,
        outcome,
    } = writer;
    let mut wait = EndWait {
        run,
        timer: TaskTimer::default(),
    };
    let closing = wait.run.node().closing();
    if head.is_closed() || closing == Some(&TerminalReason::ClientDisconnect) {
        // The reader left before the call began: there is no usage to learn.
        return;
    }
    let answer = {
        let call = async { call.await.map_err(Into::<BoxError>::into) };
        wait.until_end(pin!(call)).await
    };
    let (parts, body) = match answer {
        Ok(Ok(answer)) => answer.into_parts(),
        Ok(Err(error)) | Err(error) => {
            // If the reader has left, it needs no error: its drop has stored a reason.
            let _ = head.send(Err(error));
            return;
        }
    };
    let mut ended = body.is_end_stream();
    let hint = Hint {
        size: body.size_hint(),
        ended,
    };
    let is_sent = head.send(Ok(Response::from_parts(parts, hint))).is_ok();
    if !is_sent && !wait.reads_on(drains) {
        return;
    }
    let mut failed: Option<BoxError> = None;
    {
        let mut body = pin!(body);
        let mut discarded = 0_u8;
        while !ended {
            // Reserve room first: the task takes no frame that it cannot send to the reader.
            let room = match wait.until_end(pin!(frames.reserve())).await {
                Ok(room) => room,
                Err(ended) => return outcome.set(Err(ended)),
            };
            if room.is_err() && !wait.reads_on(drains) {
                return;
            }
            let frame = match wait.until_end(pin!(body.frame())).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => {
                    failed = Some(error.into());
                    break;
                }
                Ok(None) => break,
                Err(ended) => return outcome.set(Err(ended)),
            };
            ended = body.is_end_stream();
            if let Ok(room) = room {
                room.send(Piece { frame, last: ended });
                continue;
            }
            discarded = (discarded + 1) % YIELD_EVERY;
            if discarded == 0 && wait.until_end(pin!(yield_now())).await.is_err() {
                return;
            }
        }
    }
    if let Some(error) = failed {
        outcome.set(Err(error));
        drop(frames);
        // Wait, so that the node's deadlines hold until the reader has taken the error or has
        // left. A reader that takes the error settles the node. One that leaves aborts this task,
        // or makes the node drain.
        let run = wait.run.clone();
        let left = poll_fn(|_| match run.node().is_draining() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        drop(wait.until_end(pin!(left)).await);
        return;
    }
    outcome.set(Ok(()));
    // The upstream's body is dropped. Wait until the reader has taken all frames, so that the
    // node's deadlines hold for them.
    let capacity = frames.max_capacity();
    drop(wait.until_end(pin!(frames.reserve_many(capacity))).await);
}
