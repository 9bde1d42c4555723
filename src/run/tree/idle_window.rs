use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    task::Waker,
    time::Duration,
};

use super::{
    deadlines::{LastSeen, Nanos, nanos},
    end::{LimitHit, LimitKind},
};
use crate::run::kinds::ResetOn;

/// One layer's window of silence on a node.
///
/// The layer starts and stops the window; the node answers whether the window has passed.
#[derive(Debug)]
pub(crate) struct IdleWindow {
    /// The signs of life that reset the window. `None` for the window of a caller, which sees
    /// neither signs of life nor pauses.
    resets_on: Option<ResetOn>,
    measure: LimitKind,
    length: AtomicU64,
    /// The time at which silence began. `u64::MAX` while the layer hands on a frame, its reader is
    /// slow, or the step windows are paused.
    since: AtomicU64,
    /// The task that waits for the stream. Only this task can know that no frame lies ready, so
    /// only its check may find that the window has passed.
    task: [AtomicUsize; 2],
    /// The key under which the node stores this window.
    key: AtomicUsize,
}

impl IdleWindow {
    /// Makes a window that ends a node without progress as a step timeout.
    pub(crate) const fn new(resets_on: ResetOn) -> Self {
        Self::of(Some(resets_on), LimitKind::Set)
    }

    /// Makes a window for a stream that gave signs of life and then gives none.
    pub(crate) const fn lifeless() -> Self {
        Self::of(Some(ResetOn::AnyByte), LimitKind::Lifeless)
    }

    /// Makes a window for the time that a caller waits for the next byte.
    pub(crate) const fn callers() -> Self {
        Self::of(None, LimitKind::Unheard)
    }

    const fn of(resets_on: Option<ResetOn>, measure: LimitKind) -> Self {
        Self {
            resets_on,
            measure,
            length: AtomicU64::new(0),
            since: AtomicU64::new(u64::MAX),
            task: [AtomicUsize::new(0), AtomicUsize::new(0)],
            key: AtomicUsize::new(usize::MAX),
        }
    }

    /// Starts the window's count of silence at `since`; `since` and `length` are in nanoseconds.
    pub(crate) fn run(&self, since: u64, length: u64, task: TaskId) {
        self.set_task(task);
        self.length.store(length, Ordering::Relaxed);
        self.since.store(since, Ordering::Release);
    }

    pub(super) fn keep(&self, key: usize) {
        self.key.store(key, Ordering::Relaxed);
    }

    pub(super) fn key(&self) -> usize {
        self.key.load(Ordering::Relaxed)
    }

    pub(crate) fn set_task(&self, task: TaskId) {
        self.task[0].store(task.0, Ordering::Relaxed);
        self.task[1].store(task.1, Ordering::Relaxed);
    }

    pub(crate) fn stop(&self) {
        self.since.store(u64::MAX, Ordering::Release);
    }

    pub(super) const fn is_callers(&self) -> bool {
        self.resets_on.is_none()
    }

    /// The limit that this window is, for the end that the window causes.
    pub(super) fn limit(&self) -> LimitHit {
        LimitHit {
            limit: Some(Duration::from_nanos(self.length.load(Ordering::Relaxed))),
            measure: self.measure,
        }
    }

    /// The time at which the window passes; `None` while the layer waits for nothing.
    pub(super) fn due(&self, life: &LastSeen) -> Option<Nanos> {
        let since = self.since.load(Ordering::Acquire);
        if since == Nanos::MAX {
            return None;
        }
        let last = self.resets_on.map_or(0, |resets_on| life.last(resets_on));
        let length = self.length.load(Ordering::Relaxed);
        Some(since.max(last).saturating_add(length))
    }

    /// The time at which the window passed; `None` if it has not, or if `task` does not wait in it.
    pub(super) fn passed_at(&self, life: &LastSeen, now: Duration, task: TaskId) -> Option<Nanos> {
        let at = self.due(life)?;
        let ours = TaskId(
            self.task[0].load(Ordering::Relaxed),
            self.task[1].load(Ordering::Relaxed),
        ) == task;
        (ours && at <= nanos(now)).then_some(at)
    }
}

/// The identity of a task: the two addresses that `Waker::will_wake` compares. The identity holds
/// no reference count, and the addresses are never dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskId(usize, usize);

impl TaskId {
    pub(crate) const NONE: Self = Self(0, 0);

    #[inline]
    pub(crate) fn of(waker: &Waker) -> Self {
        Self(
            waker.data().addr(),
            std::ptr::from_ref(waker.vtable()).addr(),
        )
    }
}
