//! One timer per task for all layers, and the waiters for the ends of nodes.
//!
//! The outermost wrapper in a poll is the *driver*. Wrappers inside of it, polled with
//! the same waker, only lower the driver's next deadline. The driver arms one timer for
//! all of them, and waits for the end of its node and of the nodes below it. A wrapper
//! with a node that is not among these registers a waiter too. A different waker means a
//! task boundary, or a combinator that polls its children with wakers of its own: then
//! the wrapper is a driver too.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::Sleep;

use super::step_window::StepWindow;
use crate::{
    lazy_sleep::poll_sleep,
    run::{NEVER, Nanos, PollScope, Run, TaskId, Terminated, nanos},
};

/// The timer and the waiter of one wrapper, both made at its first `Pending` that needs them.
///
/// A driver uses both. A wrapper inside a driver's poll uses only the waiter, and only if its node
/// is neither the driver's nor below it. Both are in a box, so that a ready response only moves a
/// pointer.
#[derive(Debug, Default)]
pub(crate) struct TaskTimer(Option<Pin<Box<Engine>>>);

pin_project! {
    #[derive(Debug)]
    struct Engine {
        #[pin]
        timer: Option<Sleep>,
        // The deadline to which the timer is set, on the clock of the wrapper's tree.
        armed: Nanos,
        // The task that registered timer and waiter last.
        task: TaskId,
        waiter: Option<usize>,
    }
}

impl TaskTimer {
    /// Schedules a wake of the task at `deadline`, and at the end of `run`.
    ///
    /// The end of a node below `run` wakes the task too, unless its opener settles it.
    ///
    /// A wrapper calls this method last in a poll that returns `Pending`.
    pub(crate) fn wait(
        &mut self,
        scope: &PollScope,
        run: &Run,
        deadline: Option<Nanos>,
        cx: &mut Context<'_>,
    ) {
        let next = PollScope::lower(deadline.unwrap_or(NEVER), run);
        self.wait_for(scope, run, next, cx);
    }

    /// Waits as [`wait`](Self::wait) does; `next` is the earliest deadline of all wrappers so
    /// far, or `NEVER`.
    #[inline]
    pub(crate) fn wait_for(
        &mut self,
        scope: &PollScope,
        run: &Run,
        next: Nanos,
        cx: &mut Context<'_>,
    ) {
        let nested = scope.is_nested();
        if nested && run.node().is_at_or_below(PollScope::driven()) {
            return;
        }
        self.register(scope, run, next, cx);
    }

    #[inline(never)]
    fn register(&mut self, scope: &PollScope, run: &Run, next: Nanos, cx: &mut Context<'_>) {
        let engine = self.0.get_or_insert_with(|| {
            Box::pin(Engine {
                timer: None,
                armed: NEVER,
                task: TaskId::NONE,
                waiter: None,
            })
        });
        let engine = engine.as_mut().project();
        let task = TaskId::of(cx.waker());
        let moved = std::mem::replace(engine.task, task) != task;
        if moved {
            run.node().register_waker(engine.waiter, cx.waker(), true);
            // After the check and before the registration the node may have ended or closed, or
            // a node below may have ended.
            if run.node().epoch() != scope.epoch() || run.node().is_over() {
                cx.waker().wake_by_ref();
            }
        }
        if scope.is_nested() {
            // The driver's timer covers the deadline of a nested wrapper. The nested wrapper has a
            // waiter only for the end of its node.
            return;
        }
        arm(engine.timer, engine.armed, run, next, moved, cx);
    }

    /// Drops the timer, and removes the waiter from the node of `run`, if there are any.
    #[inline]
    pub(crate) fn release(&mut self, run: &Run) {
        if let Some(engine) = self.0.take() {
            engine.release(run);
        }
    }
}

impl Engine {
    #[inline(never)]
    fn release(mut self: Pin<Box<Self>>, run: &Run) {
        if let Some(key) = self.as_mut().project().waiter.take() {
            run.node().deregister_waker(key);
        }
    }
}

fn arm(
    mut timer: Pin<&mut Option<Sleep>>,
    armed: &mut Nanos,
    run: &Run,
    next: Nanos,
    moved: bool,
    cx: &mut Context<'_>,
) {
    // Never postpone an armed timer: a poll that is too early costs less than a reset
    // with every frame.
    let touched = match (timer.as_mut().as_pin_mut(), next) {
        (None, NEVER) => false,
        (Some(timer), _) if next >= *armed && !timer.is_elapsed() => moved,
        (set, _) => {
            // A deadline beyond the range of `Instant` never passes, so it needs no
            // timer.
            let Some(at) = run.instant(Duration::from_nanos(next)) else {
                return;
            };
            *armed = next;
            match set {
                Some(timer) => timer.reset(at),
                None => timer.set(Some(tokio::time::sleep_until(at))),
            }
            true
        }
    };
    if let (true, Some(timer)) = (touched, timer.as_pin_mut()) {
        if poll_sleep(timer, cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }
}

/// Polls `future`; the result is an error as soon as `run` has ended.
///
/// A ready future beats a deadline that passes at the same instant, but not an end that is
/// already stored. The step `windows` count the time of the wait.
///
/// When `future` is pending and `run` is live, `waits` gets the time, and returns a further
/// deadline at which the task is woken.
///
/// # Cancel safety
///
/// `future` is only borrowed, and keeps its progress when the caller stops polling.
#[allow(
    clippy::result_large_err,
    reason = "the cold path, and the type of every layer"
)]
pub(crate) fn poll_until_end<F: Future>(
    timer: &mut TaskTimer,
    run: &Run,
    windows: &mut [StepWindow],
    waits: impl FnOnce(Duration) -> Option<Nanos>,
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<Result<F::Output, Terminated>> {
    if run.node().is_over() {
        return Poll::Ready(Err(run.to_terminated()));
    }
    let scope = PollScope::enter(cx.waker(), run);
    if let Poll::Ready(output) = future.poll(cx) {
        return Poll::Ready(Ok(output));
    }
    let now = PollScope::now(run);
    let task = TaskId::of(cx.waker());
    let due = |window: &mut StepWindow| window.pending(run, None, nanos(now), task);
    let window = windows.iter_mut().filter_map(due).min();
    if let Err(ended) = PollScope::check(run, task) {
        return Poll::Ready(Err(ended));
    }
    let alarm = waits(now);
    let deadline = [window, run.node().next_deadline(), alarm]
        .into_iter()
        .flatten()
        .min();
    timer.wait(&scope, run, deadline, cx);
    Poll::Pending
}
