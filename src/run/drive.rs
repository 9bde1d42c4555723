//! One timer and one waiter per task, whatever is stacked in it.
//!
//! The outermost wrapper that is being polled is the *driver*. Wrappers below
//! it, polled with the same waker, only lower its next deadline; the driver
//! arms one timer for all of them, and waits for the end of its node and of those
//! below it; a wrapper whose node stands elsewhere waits for that itself.
//! A different waker means a task boundary (or a combinator that polls its
//! children by their own wakers): then the wrapper drives itself.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::{Instant, Sleep};

use super::{
    Run, Terminated,
    core::{Nanos, TaskId},
    silence::Silence,
};

thread_local! {
    static POLLED: Polled = const {
        Polled {
            driver: Cell::new(TaskId::NONE),
            node: Cell::new(0),
            next: Cell::new(None),
            now: Cell::new(None),
        }
    };
}

/// What a driver's poll and the polls nested in it tell each other. No
/// reference is kept: a panic or a forgotten guard leaves plain values.
struct Polled {
    driver: Cell<TaskId>,
    /// The number of the node whose end the driver waits for.
    node: Cell<u64>,
    /// The earliest deadline that nested wrappers asked for.
    next: Cell<Option<Due>>,
    /// The clock, read once on the way out of a pending poll.
    now: Cell<Option<Instant>>,
}

/// A time on the clock of one tree. Two of one tree are compared as they are;
/// to make an [`Instant`] of each would cost more than all else in a poll.
#[derive(Clone, Copy, Debug)]
struct Due {
    epoch: Instant,
    at: Nanos,
}

impl Due {
    fn instant(self) -> Option<Instant> {
        self.epoch.checked_add(Duration::from_nanos(self.at))
    }

    fn earlier(self, other: Option<Self>) -> Self {
        match other {
            Some(other) if self.epoch == other.epoch => {
                let at = self.at.min(other.at);
                Self { at, ..self }
            }
            Some(other) => match (self.instant(), other.instant()) {
                (Some(ours), Some(theirs)) if ours <= theirs => self,
                (_, Some(_)) => other,
                // Beyond what an instant can hold nothing ever comes.
                (_, None) => self,
            },
            None => self,
        }
    }
}

/// A poll under way; dropped when it is over.
pub(crate) struct Turn {
    task: TaskId,
    outer: Outer,
    /// How many ends the node had heard of before the poll.
    heard: u64,
}

enum Outer {
    /// This poll belongs to a driver further out.
    Driver,
    /// This poll is the driver's; another task's may be under way around it.
    None,
    Foreign(TaskId, u64, Option<Due>),
}

impl Turn {
    /// Call before the inner service or body is polled.
    #[inline]
    pub(crate) fn enter(waker: &Waker, run: &Run) -> Self {
        let task = TaskId::of(waker);
        POLLED.with(|polled| {
            polled.now.set(None);
            let driver = polled.driver.get();
            let outer = if driver == task {
                Outer::Driver
            } else {
                polled.driver.set(task);
                let node = polled.node.replace(run.node().number());
                let next = polled.next.take();
                if driver == TaskId::NONE {
                    Outer::None
                } else {
                    Outer::Foreign(driver, node, next)
                }
            };
            let heard = run.node().heard();
            Self { task, outer, heard }
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
    #[inline]
    fn drop(&mut self) {
        POLLED.with(|polled| match self.outer {
            Outer::Driver => {}
            Outer::None => polled.driver.set(TaskId::NONE),
            Outer::Foreign(driver, node, next) => {
                polled.driver.set(driver);
                polled.node.set(node);
                polled.next.set(next);
                polled.now.set(None);
            }
        });
    }
}

/// What a wrapper needs to be the driver: made at its first `Pending`, and
/// boxed, so that an answer that is ready moves a pointer.
#[derive(Debug, Default)]
pub(crate) struct Drive(Option<Pin<Box<Engine>>>);

pin_project! {
    #[derive(Debug)]
    struct Engine {
        #[pin]
        timer: Option<Sleep>,
        // What the timer is set to.
        armed: Option<Due>,
        // The task that timer and waiter were last registered for.
        task: TaskId,
        waiter: Option<usize>,
    }
}

impl Drive {
    /// Sees to it that the task is polled again at `deadline`, and when `run`
    /// or anything below it ends. Call on the way out of a pending poll.
    pub(crate) fn wait(
        &mut self,
        turn: &Turn,
        run: &Run,
        deadline: Option<Nanos>,
        cx: &mut Context<'_>,
    ) {
        let epoch = run.node().payload.epoch;
        let next = POLLED.with(|polled| {
            let next = polled.next.get();
            let Some(at) = deadline else { return next };
            let next = Some(Due { epoch, at }.earlier(next));
            polled.next.set(next);
            next
        });
        let nested = matches!(turn.outer, Outer::Driver);
        if nested && run.node().is_below(POLLED.with(|polled| polled.node.get())) {
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
        let moved = std::mem::replace(engine.task, turn.task) != turn.task;
        if moved {
            run.node().wait(engine.waiter, cx.waker(), true);
            // It, or a node below it, may have ended between the look at it and
            // the registration.
            if run.node().heard() != turn.heard || run.node().own_end().is_some() {
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
    armed: &mut Option<Due>,
    next: Option<Due>,
    moved: bool,
    cx: &mut Context<'_>,
) {
    // An armed timer is never postponed: it looks when it fires, which is
    // cheaper than to move it with every frame.
    let stays = |due: Due, armed: Due| due.epoch == armed.epoch && due.at >= armed.at;
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
    drive: &mut Drive,
    run: &Run,
    silence: Option<&mut Silence>,
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
    drive: &mut Drive,
    run: &Run,
    silence: Option<&mut Silence>,
    waits: impl FnOnce(Duration) -> Option<Nanos>,
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<Result<F::Output, Terminated>> {
    if run.node().own_end().is_some() {
        return Poll::Ready(Err(run.to_terminated()));
    }
    let turn = Turn::enter(cx.waker(), run);
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
