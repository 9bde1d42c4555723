use std::{future::Future, pin::Pin, task::Context};

use pin_project_lite::pin_project;
use tokio::time::Sleep;

use crate::run::TreeTime;
use crate::run::{Nanos, PollScope, Run, TaskId};

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
