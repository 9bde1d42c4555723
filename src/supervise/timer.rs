//! One timer and one waiter per task, however many layers are stacked in it.
//!
//! The outermost wrapper that is being polled is the *driver*. Wrappers below
//! it, polled with the same waker, only lower its next deadline; the driver
//! arms one timer for all of them, and waits for the end of its node and of those
//! below it; a wrapper whose node stands elsewhere waits for that itself.
//! A different waker means a task boundary (or a combinator that polls its
//! children by their own wakers): then the wrapper drives itself.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::Sleep;

use crate::run::{IdleTimer, Nanos, PollScope, Run, TaskId, Terminated, TreeTime};

/// What a wrapper needs to be the driver: made at its first `Pending`, and
/// boxed, so that an answer that is ready moves a pointer.
#[derive(Debug, Default)]
pub(crate) struct TaskTimer(Option<Pin<Box<Engine>>>);

pin_project! {
    #[derive(Debug)]
    struct Engine {
        #[pin]
        timer: Option<Sleep>,
        // What the timer is set to.
        armed: Option<TreeTime>,
        // The task that timer and waiter were last registered for.
        task: TaskId,
        waiter: Option<usize>,
    }
}

impl TaskTimer {
    /// Sees to it that the task is polled again at `deadline`, and when `run`
    /// or anything below it ends. Call on the way out of a pending poll.
    pub(crate) fn wait(
        &mut self,
        turn: &PollScope,
        run: &Run,
        deadline: Option<Nanos>,
        cx: &mut Context<'_>,
    ) {
        let epoch = run.node().payload.epoch;
        let next = PollScope::lower(deadline, epoch);
        let nested = turn.is_nested();
        if nested && run.node().is_below(PollScope::driven()) {
            return;
        }
        let engine = self.0.get_or_insert_with(|| {
            Box::pin(Engine {
                timer: None,
                armed: None,
                task: TaskId::NONE,
                waiter: None,
            })
        });
        let engine = engine.as_mut().project();
        let moved = std::mem::replace(engine.task, turn.task()) != turn.task();
        if moved {
            run.node().wait(engine.waiter, cx.waker(), true);
            // It, or a node below it, may have ended between the look at it and
            // the registration.
            if run.node().epoch() != turn.epoch() || run.node().is_over() {
                cx.waker().wake_by_ref();
            }
        }
        if nested {
            // The driver's timer serves, but its node is none of ours.
            return;
        }
        arm(engine.timer, engine.armed, next, moved, cx);
    }

    /// Gives back timer and waiter.
    #[inline]
    pub(crate) fn release(&mut self, run: &Run) {
        if let Some(mut engine) = self.0.take() {
            if let Some(key) = engine.as_mut().project().waiter.take() {
                run.node().unwait(key);
            }
        }
    }
}

fn arm(
    mut timer: Pin<&mut Option<Sleep>>,
    armed: &mut Option<TreeTime>,
    next: Option<TreeTime>,
    moved: bool,
    cx: &mut Context<'_>,
) {
    // An armed timer is never postponed: it looks when it fires, which is
    // cheaper than to move it with every frame.
    let stays = |due: TreeTime, armed: TreeTime| due.epoch == armed.epoch && due.at >= armed.at;
    let touched = match (timer.as_mut().as_pin_mut(), next) {
        (None, None) => false,
        (Some(timer), Some(due))
            if !timer.is_elapsed() && armed.is_some_and(|armed| stays(due, armed)) =>
        {
            moved
        }
        (Some(_), None) => moved,
        (set, Some(due)) => {
            // Beyond what an instant can hold nothing ever comes.
            let Some(at) = due.instant() else { return };
            *armed = Some(due);
            match set {
                Some(timer) => timer.reset(at),
                None => timer.set(Some(tokio::time::sleep_until(at))),
            }
            true
        }
    };
    if let (true, Some(timer)) = (touched, timer.as_pin_mut()) {
        // Without the budget's leave: a timer that was not registered because
        // the task had used up its turn would never fire.
        let mut timer = tokio::task::unconstrained(timer);
        if Pin::new(&mut timer).poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

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
    if let Err(ended) = turn.check(run) {
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
