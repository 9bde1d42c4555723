//! The scope of one poll, and the values that the polls nested in it share.

use std::{
    cell::{Cell, RefCell},
    task::Waker,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    handle::Run,
    report::Terminated,
    state::NodeState,
    tree::{NEVER, Nanos, Node, TaskId, nanos},
};

thread_local! {
    static DRIVER: DriverState = const {
        DriverState {
            driver: Cell::new(TaskId::NONE),
            node: Cell::new(0),
            enforced: Cell::new(0),
            clock: Cell::new(None),
            now: Cell::new(NEVER),
            next: Cell::new(NEVER),
        }
    };
}

/// The values that a driver's poll and its nested polls share. The driver is the outermost wrapper
/// that a task polls.
///
/// The values hold no references: a panic or a forgotten guard leaves plain values.
struct DriverState {
    driver: Cell<TaskId>,
    /// The driver waits for the end of the node with this number.
    node: Cell<u64>,
    /// The number of the node that the innermost enforcer around the running poll checks. Zero
    /// without one, and within [`Role::isolated`].
    enforced: Cell<u64>,
    /// The instant at which a tree was opened: `now` and `next` count from it. The two are numbers
    /// and not instants, because each poll compares them with the numbers of its node.
    clock: Cell<Option<Instant>>,
    /// The time that the innermost pending wrapper read, for the wrappers around it; `NEVER`
    /// before.
    now: Cell<Nanos>,
    /// The earliest deadline that a wrapper has reported in the driver's poll so far; `NEVER` if
    /// none.
    next: Cell<Nanos>,
}

/// Converts the shared times to the clock of the tree that was opened at `opened`.
#[inline]
fn move_to(opened: Instant) {
    if DRIVER.with(|state| state.clock.get()) != Some(opened) {
        convert_to(opened);
    }
}

#[inline(never)]
fn convert_to(opened: Instant) {
    DRIVER.with(|state| {
        let Some(before) = state.clock.replace(Some(opened)) else {
            return;
        };
        let later = nanos(opened.saturating_duration_since(before));
        let earlier = nanos(before.saturating_duration_since(opened));
        for cell in [&state.now, &state.next] {
            let at = cell.get();
            if at != NEVER {
                cell.set(at.saturating_sub(later).saturating_add(earlier));
            }
        }
    });
}

/// The shared time on the clock of the tree that was opened at `opened`. Reads the present time if
/// no wrapper has read it in this poll.
#[inline(never)]
fn read_clock(opened: Instant) -> Nanos {
    move_to(opened);
    let mut now = DRIVER.with(|state| state.now.get());
    if now == NEVER {
        now = nanos(Instant::now().saturating_duration_since(opened));
        DRIVER.with(|state| state.now.set(now));
    }
    now
}

/// The scope of one wrapper's poll, which its drop leaves at the end of the poll.
pub(crate) struct PollScope {
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
    /// The poll is the driver's own, and no driver's poll is around it.
    None,
    /// The poll is a driver's own, within a driver's poll of another task. The drop restores the
    /// values of that other poll, which `AROUND` holds: each poll copies this type.
    Foreign,
}

impl Outer {
    /// Enters a driver's poll, and returns the values of another task's driver around it, if any.
    #[inline]
    fn drive(task: TaskId, node: u64) -> Self {
        let driver = DRIVER.with(|state| state.driver.replace(task));
        if driver != TaskId::NONE {
            Foreign::push(driver, node);
            return Self::Foreign;
        }
        DRIVER.with(|state| {
            state.node.set(node);
            state.next.set(NEVER);
        });
        Self::None
    }
}

thread_local! {
    /// The drivers' polls around the one that runs, the innermost last.
    static AROUND: RefCell<Vec<Foreign>> = const { RefCell::new(Vec::new()) };
}

/// The values of a driver's poll while another task's driver is polled within it.
struct Foreign {
    driver: TaskId,
    node: u64,
    clock: Option<Instant>,
    next: Nanos,
}

impl Foreign {
    #[cold]
    fn push(driver: TaskId, node: u64) {
        let around = DRIVER.with(|state| Self {
            driver,
            node: state.node.replace(node),
            clock: state.clock.get(),
            next: state.next.replace(NEVER),
        });
        // Not while the thread ends, in the drop of a value that it keeps: `pop` then finds nothing.
        _ = AROUND.try_with(|polls| polls.borrow_mut().push(around));
    }

    #[cold]
    fn pop() {
        let popped = AROUND.try_with(|polls| polls.borrow_mut().pop());
        DRIVER.with(|state| {
            state.now.set(NEVER);
            let Some(around) = popped.ok().flatten() else {
                return state.driver.set(TaskId::NONE);
            };
            state.driver.set(around.driver);
            state.node.set(around.node);
            state.clock.set(around.clock);
            state.next.set(around.next);
        });
    }
}

/// The part that a wrapper plays in one poll: whether it enforces the node's end and deadlines.
/// Each poll decides this anew.
pub(crate) enum Role {
    /// A wrapper outside of this one enforces the node in this poll of the task.
    Inner,
    /// The wrapper enforces its node in this poll. Mostly it is the outermost wrapper of the node.
    ///
    /// The enforcer reads the node's end before the inner poll, and checks the deadlines at
    /// `Pending`.
    Enforcer(PollScope),
}

impl Role {
    /// Enters a wrapper's poll on `run`, and returns its role.
    #[inline]
    pub(crate) fn enter(waker: &Waker, run: &Run) -> Self {
        let task = TaskId::of(waker);
        let number = run.node().number();
        // The closures are small, here and below: the compiler inlines `with` only for such.
        let (driver, enforced) = DRIVER.with(|state| (state.driver.get(), state.enforced.get()));
        if enforced == number && driver == task {
            return Self::Inner;
        }
        let outer = if driver == task {
            Outer::Driver
        } else {
            Outer::drive(task, number)
        };
        DRIVER.with(|state| {
            state.enforced.set(number);
            state.now.set(NEVER);
        });
        Self::Enforcer(PollScope {
            outer,
            enforced,
            epoch: run.node().epoch(),
        })
    }

    /// Calls `poll` as if no wrapper outside enforced the node. So the outermost wrapper inside
    /// checks the deadlines itself, before the caller acts on the result.
    pub(crate) fn isolated<T>(poll: impl FnOnce() -> T) -> T {
        let enforced = DRIVER.with(|state| state.enforced.replace(0));
        let polled = poll();
        DRIVER.with(|state| state.enforced.set(enforced));
        polled
    }

    pub(crate) const fn is_inner(&self) -> bool {
        matches!(self, Self::Inner)
    }
}

impl PollScope {
    /// Enters the scope of a poll. The caller does so before it polls the inner future.
    #[inline]
    pub(crate) fn enter(waker: &Waker, run: &Run) -> Self {
        let task = TaskId::of(waker);
        let (driver, enforced) = DRIVER.with(|state| (state.driver.get(), state.enforced.get()));
        let outer = if driver == task {
            Outer::Driver
        } else {
            DRIVER.with(|state| state.enforced.set(0));
            Outer::drive(task, run.number())
        };
        DRIVER.with(|state| state.now.set(NEVER));
        Self {
            outer,
            enforced,
            epoch: run.node().epoch(),
        }
    }

    /// The time of this pending poll, since the tree of `run` was opened. The first wrapper that
    /// asks, the innermost, reads the clock; the wrappers around it get the same time.
    #[inline]
    pub(crate) fn now_nanos(run: &Run) -> Nanos {
        let opened = run.node().payload.epoch;
        let (clock, now) = DRIVER.with(|state| (state.clock.get(), state.now.get()));
        if now != NEVER && clock == Some(opened) {
            return now;
        }
        read_clock(opened)
    }

    /// The time of [`now_nanos`](Self::now_nanos), as a `Duration`.
    pub(crate) fn now(run: &Run) -> Duration {
        Duration::from_nanos(Self::now_nanos(run))
    }

    /// Lowers the driver's next deadline to `deadline`, if `deadline` is earlier.
    ///
    /// Returns the earliest deadline so far, on the clock of `run`'s tree; `NEVER` if none is set.
    #[inline]
    pub(crate) fn lower(deadline: Nanos, run: &Run) -> Nanos {
        move_to(run.node().payload.epoch);
        let next = deadline.min(DRIVER.with(|state| state.next.get()));
        DRIVER.with(|state| state.next.set(next));
        next
    }

    /// Whether this poll is nested in a driver's poll of the same task.
    pub(crate) const fn is_nested(&self) -> bool {
        matches!(self.outer, Outer::Driver)
    }

    /// The driver waits for the end of the node with this number.
    #[inline]
    pub(crate) fn driven() -> u64 {
        DRIVER.with(|state| state.node.get())
    }

    /// The polled node's epoch, as it was before the poll.
    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The earliest absolute deadline of `node` and of ancestors; `NEVER` if there is none.
    ///
    /// An ancestor that an enforcer of this task, around this poll, checks is left out, and so are
    /// the nodes above it: that enforcer reports their deadlines.
    #[inline]
    pub(crate) fn next_deadline(&self, node: &Node<NodeState>) -> Nanos {
        let around = if self.is_nested() { self.enforced } else { 0 };
        let mut next = node.clocks.earliest();
        for node in node.ancestors() {
            if node.number() == around {
                break;
            }
            next = next.min(node.clocks.earliest());
        }
        next
    }

    /// Checks the clocks of `run` and of its ancestors, at the end of a pending poll.
    #[allow(
        clippy::result_large_err,
        reason = "the cold path, and the type of every layer"
    )]
    pub(crate) fn check(run: &Run, task: TaskId) -> Result<(), Terminated> {
        let checked = run.node().check(Self::now(run), task);
        checked.map_err(|_| run.to_terminated())
    }
}

impl Drop for PollScope {
    #[inline]
    fn drop(&mut self) {
        DRIVER.with(|state| state.enforced.set(self.enforced));
        match &self.outer {
            Outer::Driver => {}
            Outer::None => DRIVER.with(|state| state.driver.set(TaskId::NONE)),
            Outer::Foreign => Foreign::pop(),
        }
    }
}

/// A guard that counts a task on a node. `Run::settled` resolves only after the guard is dropped.
#[derive(Debug)]
pub(crate) struct TaskGuard(Run);

impl TaskGuard {
    pub(crate) fn new(run: Run) -> Self {
        run.node().begin_task();
        Self(run)
    }
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        self.0.node().end_task(self.0.now());
    }
}

#[cfg(test)]
mod tests;
