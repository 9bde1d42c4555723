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

/// How many frames are thrown away in a turn. No reader holds them up, and one
/// that is always ready must not starve the clocks.
const TURN: u8 = 16;

/// The writer's end of a pump.
pub(super) struct Writer {
    pub(super) run: Run,
    /// Whether it reads on when the reader has left.
    pub(super) drains: bool,
    pub(super) head: oneshot::Sender<HeadSender>,
    pub(super) frames: mpsc::Sender<Piece>,
    pub(super) outcome: PumpOutcome,
}

/// Waits with the timer and the waiter of the task.
struct Waits {
    run: Run,
    drive: TaskTimer,
}

impl Waits {
    /// # Errors
    ///
    /// Once the node is over. The reader is handed that: it may be polled before the end
    /// has spread to the node that it looks at.
    async fn until_end<F: Future>(&mut self, future: Pin<&mut F>) -> Result<F::Output, BoxError> {
        let mut future = future;
        let waited =
            poll_fn(|cx| poll_until_end(&mut self.drive, &self.run, None, future.as_mut(), cx));
        waited.await.map_err(Into::into)
    }
}

impl Waits {
    /// Whether the caller's leaving is not the end of it.
    fn reads_on(&self, drains: bool) -> bool {
        drains && self.run.node().is_draining()
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.drive.release(&self.run);
    }
}

pin_project! {
    /// Work on a node in a task of its own.
    pub(super) struct PumpTask<F> {
        #[pin]
        work: F,
        // Last: the node is left once the work is gone.
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
/// Returning early, because the node is over or the reader is gone, drops the
/// call or the body. If the reader left a call that drains, it reads on, and
/// what it reads is thrown away.
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
    let mut waits = Waits {
        run,
        drive: TaskTimer::default(),
    };
    let closing = waits.run.node().closing();
    if head.is_closed() || closing == Some(&TerminalReason::ClientDisconnect) {
        // The reader left before anything began: there is nothing to learn.
        return;
    }
    let answer = {
        let call = async { call.await.map_err(Into::<BoxError>::into) };
        waits.until_end(pin!(call)).await
    };
    let (parts, body) = match answer {
        Ok(Ok(answer)) => answer.into_parts(),
        Ok(Err(error)) | Err(error) => {
            // A reader that is gone learns nothing; it has stored its reason.
            let _ = head.send(Err(error));
            return;
        }
    };
    let mut ended = body.is_end_stream();
    let hint = Hint {
        size: body.size_hint(),
        ended,
    };
    let told = head.send(Ok(Response::from_parts(parts, hint))).is_ok();
    if !told && !waits.reads_on(drains) {
        return;
    }
    {
        let mut body = pin!(body);
        let mut thrown_away = 0_u8;
        while !ended {
            // Room first: no frame is taken that could not be handed over.
            let room = match waits.until_end(pin!(frames.reserve())).await {
                Ok(room) => room,
                Err(ended) => return outcome.set(Err(ended)),
            };
            if room.is_err() && !waits.reads_on(drains) {
                return;
            }
            let frame = match waits.until_end(pin!(body.frame())).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(Some(Err(error))) => return outcome.set(Err(error.into())),
                Ok(None) => break,
                Err(ended) => return outcome.set(Err(ended)),
            };
            ended = body.is_end_stream();
            if let Ok(room) = room {
                room.send(Piece { frame, last: ended });
                continue;
            }
            thrown_away = (thrown_away + 1) % TURN;
            if thrown_away == 0 && waits.until_end(pin!(yield_now())).await.is_err() {
                return;
            }
        }
    }
    outcome.set(Ok(()));
    // The upstream is released. The reader's deadlines still hold until it has
    // taken the rest.
    let capacity = frames.max_capacity();
    drop(waits.until_end(pin!(frames.reserve_many(capacity))).await);
}
