//! One poll, and what the polls nested in it tell each other.

use std::{cell::Cell, task::Waker, time::Duration};

use tokio::time::Instant;

use super::{
    handle::Run,
    report::Terminated,
    tree::{Nanos, TaskId},
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
    next: Cell<Option<TreeTime>>,
    /// The clock, read once on the way out of a pending poll.
    now: Cell<Option<Instant>>,
}

/// A poll under way; dropped when it is over.
pub(crate) struct PollScope {
    task: TaskId,
    outer: Outer,
    /// The epoch of the node before the poll: how many ends it had seen.
    epoch: u64,
}

enum Outer {
    /// This poll belongs to a driver further out.
    Driver,
    /// This poll is the driver's; another task's may be under way around it.
    None,
    Foreign(TaskId, u64, Option<TreeTime>),
}

impl PollScope {
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
            let epoch = run.node().epoch();
            Self { task, outer, epoch }
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

    /// Lowers the driver's next deadline to this one; answers the next.
    pub(crate) fn lower(deadline: Option<Nanos>, epoch: Instant) -> Option<TreeTime> {
        POLLED.with(|polled| {
            let next = polled.next.get();
            let Some(at) = deadline else { return next };
            let next = Some(TreeTime { epoch, at }.earlier(next));
            polled.next.set(next);
            next
        })
    }

    /// Whether a driver further out waits for the end of this task's polls.
    pub(crate) const fn is_nested(&self) -> bool {
        matches!(self.outer, Outer::Driver)
    }

    /// The number of the node whose end the driver waits for.
    pub(crate) fn driven() -> u64 {
        POLLED.with(|polled| polled.node.get())
    }

    /// The epoch of the node before the poll: how many ends it had seen.
    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) const fn task(&self) -> TaskId {
        self.task
    }

    /// Checks the clocks from the run down, on the way out of a pending poll.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub(crate) fn check(&self, run: &Run) -> Result<(), Terminated> {
        let checked = run.node().check(run.at(self.now()), self.task());
        checked.map_err(|_| run.to_terminated())
    }
}

impl Drop for PollScope {
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

/// A time on the clock of one tree. Two of one tree are compared as they are;
/// to make an [`Instant`] of each would cost more than all else in a poll.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeTime {
    pub(crate) epoch: Instant,
    pub(crate) at: Nanos,
}

impl TreeTime {
    pub(crate) fn instant(self) -> Option<Instant> {
        self.epoch.checked_add(Duration::from_nanos(self.at))
    }

    pub(crate) fn earlier(self, other: Option<Self>) -> Self {
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

/// A task that works on a node: the node is not settled before the task is gone,
/// and what it did is dropped.
#[derive(Debug)]
pub(crate) struct TaskGuard(Run);

impl TaskGuard {
    pub(crate) fn new(run: Run) -> Self {
        run.node().enter_task();
        Self(run)
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.node().leave_task(self.0.now());
    }
}
