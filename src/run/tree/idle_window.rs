//! The windows of silence of a node, the signs of life that reset them, and the pauses that stop them.

use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    task::Waker,
    time::Duration,
};

use super::nanos::{NEVER, Nanos, nanos};
use crate::run::{
    limit_kind::{LimitHit, LimitKind, TokenRate},
    step::ResetOn,
};

/// The time of the last sign of life of each kind on one node: step, content, other.
#[derive(Debug)]
pub(crate) struct LastSeen {
    /// The times, in the order of the variants of [`ResetOn`].
    instants: [AtomicU64; 3],
}

impl LastSeen {
    pub(crate) const fn new() -> Self {
        Self {
            instants: [const { AtomicU64::new(0) }; 3],
        }
    }

    #[inline]
    pub(crate) fn record(&self, sign: ResetOn, now: Nanos) {
        let cell = &self.instants[sign as usize];
        // A slow thread must not replace a later time that another thread stored.
        if now > cell.load(Ordering::Acquire) {
            cell.fetch_max(now, Ordering::AcqRel);
        }
    }

    /// The time of the latest sign that resets a window of this kind. Zero if there was none. A
    /// step counts as content, and content counts as bytes.
    #[inline]
    pub(crate) fn last(&self, resets_on: ResetOn) -> Nanos {
        let signs = &self.instants[..=resets_on as usize];
        signs
            .iter()
            .fold(0, |latest, cell| latest.max(cell.load(Ordering::Acquire)))
    }
}

/// One window of silence on a node: that of a layer or of a tool.
///
/// The owner starts and stops the window; a check of the node finds whether the window has passed.
#[derive(Debug)]
pub(crate) struct IdleWindow {
    /// The [`WindowKind`], as a number.
    kind: AtomicU8,
    /// The bits of the floor of a window on [speed](WindowKind::Speed).
    floor: AtomicU32,
    length: AtomicU64,
    /// The time at which silence began; `u64::MAX` while the window is stopped.
    since: AtomicU64,
    /// The task that waits in this window. Only this task knows that no frame is ready, so only a
    /// check by this task may find that the window has passed.
    task: [AtomicUsize; 2],
    /// The key under which the node stores this window behind its lock. `usize::MAX` before the
    /// node stores the window. For the [window in the node](Clocks::own_window): 0 while a timer
    /// has taken it, else `usize::MAX`.
    key: AtomicUsize,
    /// The count of silence of the owner's timer. The count stands here so that the timer stays
    /// small.
    pub(crate) count: SilenceCount,
}

/// The measure of a window of silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowKind {
    /// A step timeout, which signs of this kind reset.
    Step(ResetOn),
    /// The time without a byte or heartbeat, on a stream that sent heartbeats.
    Lifeless,
    /// The longest time that a caller waits for the next byte. Neither signs of life on the node
    /// nor pauses affect this window.
    Callers,
    /// The time over which a stream was slower than its floor. The owner runs the window once the
    /// time has passed; signs of life on the node do not reset it.
    Speed,
}

impl WindowKind {
    const ALL: [Self; 6] = [
        Self::Step(ResetOn::Step),
        Self::Step(ResetOn::Content),
        Self::Step(ResetOn::AnyByte),
        Self::Lifeless,
        Self::Callers,
        Self::Speed,
    ];

    const fn number(self) -> u8 {
        match self {
            Self::Step(resets_on) => resets_on as u8,
            Self::Lifeless => 3,
            Self::Callers => 4,
            Self::Speed => 5,
        }
    }
}

/// The count of silence of one timer. Only the wrapper that owns the timer reads and writes it.
#[derive(Debug)]
pub(crate) struct SilenceCount {
    /// The silence, in nanoseconds, that was counted when the count last stopped. 0 after a reset.
    silence: AtomicU64,
    /// The total of ended pauses, in nanoseconds, at the timer's last look. Later pauses are yet to
    /// be subtracted.
    pauses: AtomicU64,
    state: AtomicU8,
    /// Whether the current silence has had its grace.
    graced: AtomicBool,
    /// The time in `IdleState::Since` or `IdleState::Stopped`; zero for `IdleState::Fresh`.
    at: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleState {
    /// The wrapper waits for nothing, and its next wait counts from zero.
    Fresh,
    /// The wrapper waits, and its silence counts from this time on the tree's clock.
    Since(Nanos),
    /// The count stopped at this time, and `silence` holds the count before it.
    Stopped(Nanos),
}

impl SilenceCount {
    const fn new() -> Self {
        Self {
            silence: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            state: AtomicU8::new(0),
            graced: AtomicBool::new(false),
            at: AtomicU64::new(0),
        }
    }

    fn clear(&self) {
        self.set_silence(0);
        self.pauses.store(0, Ordering::Relaxed);
        self.set_graced(false);
        self.set_state(IdleState::Fresh);
    }

    pub(crate) fn is_graced(&self) -> bool {
        self.graced.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_graced(&self, graced: bool) {
        self.graced.store(graced, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn state(&self) -> IdleState {
        let at = self.at.load(Ordering::Relaxed);
        match self.state.load(Ordering::Relaxed) {
            0 => IdleState::Fresh,
            1 => IdleState::Since(at),
            _ => IdleState::Stopped(at),
        }
    }

    #[inline]
    pub(crate) fn set_state(&self, state: IdleState) {
        let (state, at) = match state {
            IdleState::Fresh => (0, 0),
            IdleState::Since(at) => (1, at),
            IdleState::Stopped(at) => (2, at),
        };
        self.state.store(state, Ordering::Relaxed);
        self.at.store(at, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn silence(&self) -> Nanos {
        self.silence.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_silence(&self, silence: Nanos) {
        self.silence.store(silence, Ordering::Relaxed);
    }

    /// Subtracts from a running count the pauses that ended since the method last ran. `total` is
    /// the length of all pauses that ended, in nanoseconds.
    #[inline]
    pub(crate) fn subtract_pauses(&self, total: Nanos, now: Nanos) {
        let unseen = total.saturating_sub(self.pauses.load(Ordering::Relaxed));
        if let (IdleState::Since(since), 1..) = (self.state(), unseen) {
            self.set_state(IdleState::Since(since.saturating_add(unseen).min(now)));
        }
        self.pauses.store(total, Ordering::Relaxed);
    }
}

impl IdleWindow {
    pub(crate) const fn new(kind: WindowKind) -> Self {
        Self {
            kind: AtomicU8::new(kind.number()),
            floor: AtomicU32::new(0),
            length: AtomicU64::new(0),
            since: AtomicU64::new(u64::MAX),
            task: [AtomicUsize::new(0), AtomicUsize::new(0)],
            key: AtomicUsize::new(usize::MAX),
            count: SilenceCount::new(),
        }
    }

    /// Makes a window on the speed of a stream, with this floor.
    pub(crate) fn of_speed(floor: TokenRate) -> Self {
        Self {
            floor: AtomicU32::new(floor.bits()),
            ..Self::new(WindowKind::Speed)
        }
    }

    /// Starts the window: it passes `length` after `since` unless a sign of life resets it. Both
    /// are in nanoseconds. `task` is the task that waits.
    pub(crate) fn run(&self, since: u64, length: u64, task: TaskId) {
        self.set_task(task);
        self.length.store(length, Ordering::Relaxed);
        self.since.store(since, Ordering::Release);
    }

    pub(super) fn keep(&self, key: usize) {
        self.key.store(key, Ordering::Relaxed);
    }

    /// Takes this window, the one inline in its node, for a timer; returns whether it was free.
    pub(super) fn take(&self, kind: WindowKind) -> bool {
        let (free, taken) = (usize::MAX, 0);
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        let was_free = self
            .key
            .compare_exchange(free, taken, acquire, relaxed)
            .is_ok();
        if was_free {
            self.kind.store(kind.number(), Ordering::Relaxed);
        }
        was_free
    }

    /// Gives back this window, which a timer has taken: stops it, and clears its count of silence.
    pub(super) fn give_back(&self) {
        self.stop();
        self.count.clear();
        self.key.store(usize::MAX, Ordering::Release);
    }

    #[cfg(test)]
    pub(super) fn is_taken(&self) -> bool {
        self.key() != usize::MAX
    }

    fn kind(&self) -> WindowKind {
        WindowKind::ALL[usize::from(self.kind.load(Ordering::Relaxed))]
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

    pub(super) fn is_callers(&self) -> bool {
        self.kind() == WindowKind::Callers
    }

    /// Whether the window is one of silence of the upstream.
    pub(super) fn is_of_silence(&self) -> bool {
        !matches!(self.kind(), WindowKind::Callers | WindowKind::Speed)
    }

    /// The length and the kind of this window, for the end that the window causes.
    pub(super) fn limit(&self) -> LimitHit {
        LimitHit {
            limit: Some(Duration::from_nanos(self.length.load(Ordering::Relaxed))),
            kind: match self.kind() {
                WindowKind::Step(_) => LimitKind::Set,
                WindowKind::Lifeless => LimitKind::Lifeless,
                WindowKind::Callers => LimitKind::Unheard,
                WindowKind::Speed => {
                    let floor = self.floor.load(Ordering::Relaxed);
                    LimitKind::Slow(TokenRate::from_bits(floor))
                }
            },
        }
    }

    /// The time at which the window passes; `None` while it is stopped, or if it never passes.
    pub(super) fn due(&self, life: &LastSeen) -> Option<Nanos> {
        let since = self.since.load(Ordering::Acquire);
        if since == Nanos::MAX {
            return None;
        }
        let last = match self.kind() {
            WindowKind::Step(resets_on) => life.last(resets_on),
            WindowKind::Lifeless => life.last(ResetOn::AnyByte),
            WindowKind::Callers | WindowKind::Speed => 0,
        };
        let length = self.length.load(Ordering::Relaxed);
        // The maximum length stands for no limit. A request may limit the silence only before the
        // first content, or only after it.
        (length < NEVER - 1).then(|| since.max(last).saturating_add(length))
    }

    /// The time at which the window passed. `None` if the window has not passed, or if `task` does
    /// not wait in it.
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
pub(crate) struct TaskId(usize, usize);

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

/// The pauses that began at one node, or at the node and below.
///
/// Overlapping pauses count as one: `since` is the start of the current one, and `total` the length
/// of those that are over. The fields change under the node's lock, and are read without the lock.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    count: AtomicU32,
    since: AtomicU64,
    total: AtomicU64,
    /// The time at which `count` last fell to zero; zero if it never did.
    last: AtomicU64,
}

/// The paused time of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Paused {
    /// The time since which the node has been paused; `None` if no pause is on.
    pub(crate) since: Option<Nanos>,
    /// The total length of the pauses that are over.
    pub(crate) total: Nanos,
}

impl Pauses {
    pub(super) fn begin(&self, now: Nanos) {
        if self.count.load(Ordering::Acquire) == 0 {
            self.since.store(now, Ordering::Release);
        }
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn end(&self, now: Nanos) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            let lasted = now.saturating_sub(self.since.load(Ordering::Acquire));
            self.total.fetch_add(lasted, Ordering::AcqRel);
            self.last.store(now, Ordering::Release);
        }
    }

    pub(super) fn last(&self) -> Nanos {
        self.last.load(Ordering::Acquire)
    }

    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    #[inline]
    pub(super) fn add_to(&self, paused: &mut Paused) {
        paused.total += self.total.load(Ordering::Acquire);
        if self.is_on() {
            let since = self.since.load(Ordering::Acquire);
            paused.since = Some(paused.since.map_or(since, |at| at.min(since)));
        }
    }
}
