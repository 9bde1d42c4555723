//! Reads a call to its end after its caller has left, to learn the usage.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
};

use http_body::Body;

use super::work::PumpedWork;
use crate::{
    run::{ResetOn, Run, TaskGuard},
    supervise::{TaskTimer, poll_until_end},
};

/// The number of discarded frames after which the task yields.
///
/// A body that is always ready must not starve the clocks.
const YIELD_EVERY: u8 = 16;

/// Polls a call to the end of its body or of its node, and discards the frames.
pub(super) struct Drain {
    run: Run,
    timer: TaskTimer,
    discarded: u8,
    work: PumpedWork,
    // This field drops last, so that the node counts the task until the call or the body is
    // dropped.
    _task: TaskGuard,
}

impl Drain {
    pub(super) fn new(work: PumpedWork, run: Run) -> Self {
        Self {
            timer: TaskTimer::default(),
            discarded: 0,
            work,
            _task: TaskGuard::new(run.clone()),
            run,
        }
    }
}

impl Future for Drain {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self {
            run,
            timer,
            discarded,
            work,
            ..
        } = &mut *self;
        let read = pin!(poll_fn(|cx| read_on(work, discarded, cx)));
        poll_until_end(timer, run, &mut [], |_| None, read, cx).map(drop)
    }
}

fn read_on(work: &mut PumpedWork, discarded: &mut u8, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        match work {
            PumpedWork::Call(call) => match ready!(call.as_mut().poll(cx)) {
                Ok(answer) => *work = PumpedWork::Body(answer.into_body()),
                Err(_) => return Poll::Ready(()),
            },
            PumpedWork::Body(body) => {
                if body.is_end_stream() {
                    return Poll::Ready(());
                }
                let Some(Ok(_)) = ready!(Pin::new(body).poll_frame(cx)) else {
                    return Poll::Ready(());
                };
                *discarded = (*discarded + 1) % YIELD_EVERY;
                if *discarded == 0 {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        self.timer.release(&self.run);
        // The end of a drained call is a step of its run, as that of any other call. So its
        // idle time counts from now, and not from the upstream's last frame.
        if let Some(run) = self.run.node().parent() {
            run.record(ResetOn::Step, self.run.now());
        }
    }
}
