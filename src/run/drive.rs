//! One timer and one waiter per task, whatever is stacked in it.
//!
//! The outermost wrapper that is being polled is the *driver*. Wrappers below
//! it, polled with the same waker, only lower its next deadline; the driver
//! arms one timer for all of them and waits for the end of its node once.
//! A different waker means a task boundary (or a combinator that polls its
//! children by their own wakers): then the wrapper drives itself.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use super::{Run, Terminated, core::TaskId, silence::Silence};

thread_local! {
    static POLLED: Polled = const {
        Polled {
            driver: Cell::new(TaskId::NONE),
            next: Cell::new(None),
            now: Cell::new(None),
        }
    };
}

/// What a driver's poll and the polls nested in it tell each other. No
/// reference is kept: a panic or a forgotten guard leaves plain values.
struct Polled {
    driver: Cell<TaskId>,
    /// The earliest deadline that nested wrappers asked for.
    next: Cell<Option<Instant>>,
    /// The clock, read once on the way out of a pending poll.
    now: Cell<Option<Instant>>,
}

/// A poll under way; dropped when it is over.
pub(crate) struct Turn {
    task: TaskId,
    outer: Outer,
}

enum Outer {
    /// This poll belongs to a driver further out.
    Driver,
    /// This poll is the driver's; another task's may be under way around it.
    None,
    Foreign(TaskId, Option<Instant>),
}

impl Turn {
    /// Call before the inner service or body is polled.
    pub(crate) fn enter(waker: &Waker) -> Self {
        let task = TaskId::of(waker);
        POLLED.with(|polled| {
            polled.now.set(None);
            let driver = polled.driver.get();
            let outer = if driver == task {
                Outer::Driver
            } else {
                polled.driver.set(task);
                let next = polled.next.take();
                if driver == TaskId::NONE {
                    Outer::None
                } else {
                    Outer::Foreign(driver, next)
                }
            };
            Self { task, outer }
        })
    }

    /// The time at which the innermost wrapper found nothing to do.
    pub(crate) fn now(&self) -> Instant {
        POLLED.with(|polled| {
            let now = polled.now.get().unwrap_or_else(Instant::now);
            polled.now.set(Some(now));
            now
        })
    }

    pub(crate) const fn task(&self) -> TaskId {
        self.task
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        POLLED.with(|polled| match self.outer {
            Outer::Driver => {}
            Outer::None => polled.driver.set(TaskId::NONE),
            Outer::Foreign(driver, next) => {
                polled.driver.set(driver);
                polled.next.set(next);
                polled.now.set(None);
            }
        });
    }
}

/// What a wrapper needs to be the driver: made at its first `Pending`.
#[derive(Debug, Default)]
pub(crate) struct Drive {
    timer: Option<Pin<Box<Sleep>>>,
    /// The task that timer and waiter were last registered for.
    task: Option<TaskId>,
    waiter: Option<usize>,
}

impl Drive {
    /// Sees to it that the task is polled again at `deadline`, and when `run`
    /// or anything below it ends. Call on the way out of a pending poll.
    pub(crate) fn wait(
        &mut self,
        turn: &Turn,
        run: &Run,
        deadline: Option<Duration>,
        cx: &mut Context<'_>,
    ) {
        let deadline = deadline.and_then(|at| run.instant(at));
        let next = POLLED.with(|polled| {
            let next = earlier(polled.next.get(), deadline);
            polled.next.set(next);
            next
        });
        if matches!(turn.outer, Outer::Driver) {
            return;
        }
        let moved = self.task != Some(turn.task);
        if moved {
            self.task = Some(turn.task);
            run.node().wait(&mut self.waiter, cx.waker(), true);
            // It may have ended between the look at it and the registration.
            if run.node().own_end().is_some() {
                cx.waker().wake_by_ref();
            }
        }
        self.arm(next, moved, cx);
    }

    fn arm(&mut self, next: Option<Instant>, moved: bool, cx: &mut Context<'_>) {
        let touched = match (&mut self.timer, next) {
            (None, None) => false,
            (timer @ None, Some(at)) => {
                *timer = Some(Box::pin(tokio::time::sleep_until(at)));
                true
            }
            // An armed timer is never postponed: it looks when it fires, which
            // is cheaper than to move it with every frame.
            (Some(timer), Some(at)) if timer.is_elapsed() || at < timer.deadline() => {
                timer.as_mut().reset(at);
                true
            }
            (Some(_), _) => moved,
        };
        if let (true, Some(timer)) = (touched, &mut self.timer) {
            // Without the budget's leave: a timer that was not registered
            // because the task had used up its turn would never fire.
            let mut timer = tokio::task::unconstrained(timer.as_mut());
            if Pin::new(&mut timer).poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
    }

    /// Gives back timer and waiter.
    pub(crate) fn release(&mut self, run: &Run) {
        self.timer = None;
        self.task = None;
        if let Some(key) = self.waiter.take() {
            run.node().unwait(key);
        }
    }
}

fn earlier(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
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
    drive: &mut Drive,
    run: &Run,
    silence: Option<&mut Silence>,
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<Result<F::Output, Terminated>> {
    if run.node().own_end().is_some() {
        return Poll::Ready(Err(run.to_terminated()));
    }
    let turn = Turn::enter(cx.waker());
    if let Poll::Ready(output) = future.poll(cx) {
        return Poll::Ready(Ok(output));
    }
    let now = run.at(turn.now());
    let window = silence.and_then(|silence| silence.wait(run, run, now, turn.task()));
    if let Err(ended) = run.check_in(&turn) {
        return Poll::Ready(Err(ended));
    }
    let deadline = [window, run.node().next_deadline()]
        .into_iter()
        .flatten()
        .min();
    drive.wait(&turn, run, deadline, cx);
    Poll::Pending
}
