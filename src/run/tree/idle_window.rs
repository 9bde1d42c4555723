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

/// One layer's window of silence on a node, shared by the layer, which says when it
/// waits, and the node, which answers whether it has passed.
#[derive(Debug)]
pub(crate) struct IdleWindow {
    /// Which signs of life on the node reset it; none if it is a caller's, who
    /// knows of no sign and no pause of ours.
    resets_on: Option<ResetOn>,
    measure: LimitKind,
    length: AtomicU64,
    /// Since when silence is counted: none while a frame is being handed on, a
    /// reader is slow, or there is a pause.
    since: AtomicU64,
    /// The task that waits. Only this task can know that no frame lies ready,
    /// so only a check from it may call the window passed.
    task: [AtomicUsize; 2],
    /// Where the node keeps it.
    key: AtomicUsize,
}

impl IdleWindow {
    /// A step window.
    pub(crate) const fn new(resets_on: ResetOn) -> Self {
        Self::of(Some(resets_on), LimitKind::Set)
    }

    /// How long a stream that gave signs of life may give none.
    pub(crate) const fn lifeless() -> Self {
        Self::of(Some(ResetOn::AnyByte), LimitKind::Lifeless)
    }

    /// How long a caller waits for the next byte.
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

    /// Counts silence from `since` on; both in nanoseconds.
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

    /// Its limit, if that has passed.
    pub(super) fn limit(&self) -> LimitHit {
        LimitHit {
            limit: Some(Duration::from_nanos(self.length.load(Ordering::Relaxed))),
            measure: self.measure,
        }
    }

    /// When it will have passed; none while nothing is waited for.
    pub(super) fn due(&self, life: &LastSeen) -> Option<Nanos> {
        let since = self.since.load(Ordering::Acquire);
        if since == Nanos::MAX {
            return None;
        }
        let last = self.resets_on.map_or(0, |resets_on| life.last(resets_on));
        let length = self.length.load(Ordering::Relaxed);
        Some(since.max(last).saturating_add(length))
    }

    /// When it passed, if it has at `now`, as far as `task` can know.
    pub(super) fn passed_at(&self, life: &LastSeen, now: Duration, task: TaskId) -> Option<Nanos> {
        let at = self.due(life)?;
        let ours = TaskId(
            self.task[0].load(Ordering::Relaxed),
            self.task[1].load(Ordering::Relaxed),
        ) == task;
        (ours && at <= nanos(now)).then_some(at)
    }
}

/// What `Waker::will_wake` compares, kept without a reference count: two
/// addresses that are compared and never followed.
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
