//! The scope of one poll, and the values that the polls nested in it share.

use std::{cell::Cell, task::Waker, time::Duration};

use tokio::time::Instant;

use super::{
    handle::Run,
    report::Terminated,
    state::NodeState,
    tree::{Nanos, Node, TaskId, nanos},
};

thread_local! {
    static DRIVER: DriverState = const {
        DriverState {
            driver: Cell::new(TaskId::NONE),
            node: Cell::new(0),
            enforced: Cell::new(0),
            next: Cell::new(None),
            now: Cell::new(None),
        }
    };
}

/// The values that a driver's poll and its nested polls share. The driver is the outermost wrapper
/// that a task polls.
///
/// The values hold no references: a panic or a forgotten guard leaves plain values.
struct DriverState {
    driver: Cell<TaskId>,
    /// The number of the node whose end the driver waits for.
    node: Cell<u64>,
    /// The number of the node that the innermost enforcing wrapper around the running poll checks;
    /// zero if none.
    enforced: Cell<u64>,
    /// The earliest deadline that a wrapper has reported in the driver's poll so far.
    next: Cell<Option<TreeTime>>,
    /// The time that the innermost pending wrapper read, for the wrappers around it; `None` before.
    now: Cell<Option<Now>>,
}

/// A time that a poll read: as an instant, and as the time `at` since `epoch`, the opening of a
/// tree.
#[derive(Clone, Copy)]
struct Now {
    instant: Instant,
    epoch: Instant,
    at: Duration,
}

/// The scope of one wrapper's poll. Its drop, at the end of the poll, restores the values of the
/// poll around it.
pub(crate) struct PollScope {
    task: TaskId,
    outer: Outer,
    /// The value of `DriverState::enforced` before this poll, which the drop restores.
    enforced: u64,
    /// The polled node's epoch, read before the poll. A different epoch later means that a node
    /// below ended, or that the node is closing.
    epoch: u64,
}

enum Outer {
    /// The poll is nested in a driver's poll of the same task.
    Driver,
    /// The poll is the driver's own, and no driver's poll is around it. `Foreign` is a driver's own
    /// poll within a driver's poll of another task, whose values the drop restores.
    None,
    Foreign(TaskId, u64, Option<TreeTime>),
}

/// The part that a wrapper plays in one poll: whether it enforces the node's end and deadlines.
/// Each poll decides this anew.
pub(crate) enum Role {
    /// A wrapper outside of this one enforces the node in this poll of the task.
    Inner(TaskId),
    /// The wrapper is the outermost of its node in this poll: it reads the node's end before it
    /// polls, and checks the deadlines at `Pending`.
    Enforcer(PollScope),
}

impl Role {
    /// The role of a wrapper on `run`, for the poll that follows.
    #[inline]
    pub(crate) fn enter(waker: &Waker, run: &Run) -> Self {
        let task = TaskId::of(waker);
        let number = run.node().number();
        let is_inner =
            DRIVER.with(|state| state.enforced.get() == number && state.driver.get() == task);
        if is_inner {
            return Self::Inner(task);
        }
        let scope = PollScope::new(task, run);
        DRIVER.with(|state| state.enforced.set(number));
        Self::Enforcer(scope)
    }

    /// Calls `poll` as if no wrapper outside enforced the node. So the outermost wrapper inside
    /// checks the deadlines itself, before the caller acts on the result.
    pub(crate) fn apart<T>(poll: impl FnOnce() -> T) -> T {
        let enforced = DRIVER.with(|state| state.enforced.replace(0));
        let polled = poll();
        DRIVER.with(|state| state.enforced.set(enforced));
        polled
    }

    pub(crate) const fn is_inner(&self) -> bool {
        matches!(self, Self::Inner(_))
    }

    pub(crate) const fn task(&self) -> TaskId {
        match self {
            Self::Inner(task) => *task,
            Self::Enforcer(scope) => scope.task(),
        }
    }
}

impl PollScope {
    /// Enters the scope of a poll; the caller does so before it polls the inner service or body.
    #[inline]
    pub(crate) fn enter(waker: &Waker, run: &Run) -> Self {
        Self::new(TaskId::of(waker), run)
    }

    fn new(task: TaskId, run: &Run) -> Self {
        let epoch = run.node().epoch();
        DRIVER.with(|state| {
            state.now.set(None);
            let enforced = state.enforced.get();
            let driver = state.driver.get();
            let outer = if driver == task {
                Outer::Driver
            } else {
                state.driver.set(task);
                let node = state.node.replace(run.node().number());
                let next = state.next.take();
                state.enforced.set(0);
                if driver == TaskId::NONE {
                    Outer::None
                } else {
                    Outer::Foreign(driver, node, next)
                }
            };
            Self {
                task,
                outer,
                enforced,
                epoch,
            }
        })
    }

    /// The time of this pending poll, since the tree of `run` was opened. The first wrapper that
    /// asks, the innermost, reads the clock; the wrappers around it get the same time.
    pub(crate) fn at(run: &Run) -> Duration {
        let epoch = run.node().payload.epoch;
        DRIVER.with(|state| {
            let instant = match state.now.get() {
                Some(now) if now.epoch == epoch => return now.at,
                Some(now) => now.instant,
                None => Instant::now(),
            };
            let at = run.at(instant);
            state.now.set(Some(Now { instant, epoch, at }));
            at
        })
    }

    /// Lowers the driver's next deadline to `deadline` if that is earlier, and answers the earliest
    /// of all. `deadline` is in nanoseconds since `epoch`.
    pub(crate) fn lower(deadline: Option<Nanos>, epoch: Instant) -> Option<TreeTime> {
        DRIVER.with(|state| {
            let next = state.next.get();
            let Some(at) = deadline else { return next };
            let next = Some(TreeTime { epoch, at }.earlier(next));
            state.next.set(next);
            next
        })
    }

    /// Whether this poll is nested in a driver's poll of the same task.
    pub(crate) const fn is_nested(&self) -> bool {
        matches!(self.outer, Outer::Driver)
    }

    /// The number of the node whose end the driver waits for.
    pub(crate) fn driven() -> u64 {
        DRIVER.with(|state| state.node.get())
    }

    /// The polled node's epoch, as it was before the poll.
    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) const fn task(&self) -> TaskId {
        self.task
    }

    /// The earliest absolute deadline of `node`, and of the nodes above it up to the one that
    /// another enforcer around this poll checks.
    pub(crate) fn next_deadline(&self, node: &Node<NodeState>) -> Option<Nanos> {
        let around = if self.is_nested() { self.enforced } else { 0 };
        let mut next = node.clocks.next();
        for node in node.ancestors() {
            if node.number() == around {
                break;
            }
            next = next.into_iter().chain(node.clocks.next()).min();
        }
        next
    }

    /// Checks the clocks from the root down to `run`, on the way out of a pending poll.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub(crate) fn check(&self, run: &Run) -> Result<(), Terminated> {
        let checked = run.node().check(Self::at(run), self.task());
        checked.map_err(|_| run.to_terminated())
    }
}

impl Drop for PollScope {
    #[inline]
    fn drop(&mut self) {
        DRIVER.with(|state| {
            state.enforced.set(self.enforced);
            match self.outer {
                Outer::Driver => {}
                Outer::None => state.driver.set(TaskId::NONE),
                Outer::Foreign(driver, node, next) => {
                    state.driver.set(driver);
                    state.node.set(node);
                    state.next.set(next);
                    state.now.set(None);
                }
            }
        });
    }
}

/// A time on the clock of one run's tree, in nanoseconds since the tree was opened.
///
/// Two times of one tree are compared directly: to make an [`Instant`] of each would cost more
/// than the rest of a poll.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeTime {
    pub(crate) epoch: Instant,
    pub(crate) at: Nanos,
}

impl TreeTime {
    pub(crate) fn instant(self) -> Option<Instant> {
        self.epoch.checked_add(Duration::from_nanos(self.at))
    }

    /// Whether this time is not after `now`, a time on the clock of the tree of `run`.
    pub(crate) fn has_passed(self, run: &Run, now: Duration) -> bool {
        if run.node().payload.epoch == self.epoch {
            return self.at <= nanos(now);
        }
        self.instant()
            .is_some_and(|at| at <= run.node().payload.epoch + now)
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
                // A time beyond the range of an `Instant` never comes.
                (_, None) => self,
            },
            None => self,
        }
    }
}

/// A guard that counts a task on a node: `Run::settled` resolves only after the guard is dropped.
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
