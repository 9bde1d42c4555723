use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::timer::TaskTimer;
use crate::run::{IdleTimer, Nanos, PollScope, Run, Terminated};

/// Polls `future` until it is ready or `run` is over, whichever is first; a
/// ready future wins a tie with a clock. `silence` is a step window on `run`
/// that the wait counts towards.
///
/// # Cancel safety
///
/// The future is only borrowed; what was polled so far stays.
#[allow(
    clippy::result_large_err,
    reason = "the cold path, and the type of every layer"
)]
pub(crate) fn poll_until_end<F: Future>(
    drive: &mut TaskTimer,
    run: &Run,
    silence: Option<&mut IdleTimer>,
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<Result<F::Output, Terminated>> {
    poll_until_end_and(drive, run, silence, |_| None, future, cx)
}

/// The same; `waits` is told the time at each pending poll in which `run` is not
/// over, and answers when it wants to be told again.
///
/// # Cancel safety
///
/// As for [`poll_until_end`].
#[allow(
    clippy::result_large_err,
    reason = "the cold path, and the type of every layer"
)]
pub(crate) fn poll_until_end_and<F: Future>(
    drive: &mut TaskTimer,
    run: &Run,
    silence: Option<&mut IdleTimer>,
    waits: impl FnOnce(Duration) -> Option<Nanos>,
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<Result<F::Output, Terminated>> {
    if run.node().is_over() {
        return Poll::Ready(Err(run.to_terminated()));
    }
    let turn = PollScope::enter(cx.waker(), run);
    if let Poll::Ready(output) = future.poll(cx) {
        return Poll::Ready(Ok(output));
    }
    let now = run.at(turn.now());
    let window = silence.and_then(|silence| silence.wait(run.node(), now, turn.task()));
    if let Err(ended) = run.check_in(&turn) {
        return Poll::Ready(Err(ended));
    }
    let alarm = waits(now);
    let deadline = [window, run.node().next_deadline(), alarm]
        .into_iter()
        .flatten()
        .min();
    drive.wait(&turn, run, deadline, cx);
    Poll::Pending
}
