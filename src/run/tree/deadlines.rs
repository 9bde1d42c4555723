use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::run::kinds::ResetOn;

/// Nanoseconds since the tree was opened: what is stored and compared, where a
/// [`Duration`] would be taken apart and put together with every frame.
pub(crate) type Nanos = u64;

const NEVER: Nanos = Nanos::MAX;

/// An absolute clock of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    Ceiling,
    Timeout,
    /// An attempt's share of the time that is left, until its commit.
    Share,
    /// What the caller of this very call announced.
    Announced,
    /// Until when a node that is closing goes on.
    Drain,
}

/// An announced deadline, until it is taken back.
#[derive(Debug)]
pub(crate) struct Announcement {
    at: Nanos,
}

/// The absolute deadlines of one node, in nanoseconds since the tree opened.
// In this order, so that what is compared stands side by side.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Clocks {
    ceiling: AtomicU64,
    timeout: AtomicU64,
    share: AtomicU64,
    /// The earliest of those that stand.
    announced: AtomicU64,
    drain: AtomicU64,
    /// All that were announced, one per layer that reads them; changed under the lock,
    /// and with it the earliest.
    announcements: Mutex<Vec<Nanos>>,
}

impl Clocks {
    pub(crate) const fn new() -> Self {
        Self {
            ceiling: AtomicU64::new(NEVER),
            timeout: AtomicU64::new(NEVER),
            share: AtomicU64::new(NEVER),
            announced: AtomicU64::new(NEVER),
            drain: AtomicU64::new(NEVER),
            announcements: Mutex::new(Vec::new()),
        }
    }

    const fn cell(&self, clock: Clock) -> &AtomicU64 {
        match clock {
            Clock::Ceiling => &self.ceiling,
            Clock::Timeout => &self.timeout,
            Clock::Share => &self.share,
            Clock::Announced => &self.announced,
            Clock::Drain => &self.drain,
        }
    }

    /// Lowers the deadline to `at`; a later one than the stored is ignored. Answers
    /// whether it was lowered.
    pub(crate) fn tighten(&self, clock: Clock, at: Duration) -> bool {
        let cell = self.cell(clock);
        let at = nanos(at);
        // Mostly it stands there already: a load is cheaper than an exchange.
        at < cell.load(Ordering::Acquire) && at < cell.fetch_min(at, Ordering::AcqRel)
    }

    /// The share was a limit to the commit, and that has come.
    pub(crate) fn lapse(&self) {
        self.share.store(NEVER, Ordering::Release);
    }

    /// Holds [`Clock::Announced`] to `at` at the latest, until it is
    /// [withdrawn](Self::withdraw).
    pub(crate) fn announce(&self, at: Duration) -> Announcement {
        let at = nanos(at);
        self.change_announced(|all| all.push(at));
        Announcement { at }
    }

    /// Takes one [`announce`](Self::announce) back: the earliest of what others
    /// announced stands then.
    pub(crate) fn withdraw(&self, announcement: Announcement) {
        self.change_announced(|all| {
            // Of two that are equal either will do.
            if let Some(index) = all.iter().position(|at| *at == announcement.at) {
                all.swap_remove(index);
            }
        });
    }

    /// Takes back all that was [announced](Self::announce).
    pub(crate) fn forget_announced(&self) {
        self.change_announced(Vec::clear);
    }

    fn change_announced(&self, change: impl FnOnce(&mut Vec<Nanos>)) {
        let all = self.announcements.lock();
        let mut all = all.unwrap_or_else(PoisonError::into_inner);
        change(&mut all);
        let earliest = all.iter().copied().min().unwrap_or(NEVER);
        self.announced.store(earliest, Ordering::Release);
    }

    /// Ends at `at`, or when nobody works on it any more. In one order with the
    /// count of those who do: one of the two sees the other.
    /// Answers whether that is sooner than before.
    pub(super) fn drain(&self, at: Duration) -> bool {
        let at = nanos(at);
        at < self.drain.fetch_min(at, Ordering::SeqCst)
    }

    pub(super) fn is_draining(&self) -> bool {
        self.drain.load(Ordering::SeqCst) != NEVER
    }

    pub(crate) fn get(&self, clock: Clock) -> Option<Duration> {
        duration(self.cell(clock).load(Ordering::Acquire))
    }

    /// The earliest of all.
    #[inline]
    pub(crate) fn next(&self) -> Option<Nanos> {
        let ceiling = self.ceiling.load(Ordering::Acquire);
        let next = ceiling.min(self.timeout.load(Ordering::Acquire));
        let next = next.min(self.share.load(Ordering::Acquire));
        let next = next.min(self.announced.load(Ordering::Acquire));
        let next = next.min(self.drain.load(Ordering::Acquire));
        (next != NEVER).then_some(next)
    }
}

/// When a node last showed a sign of life, of work, or finished a step.
#[derive(Debug)]
pub(crate) struct LastSeen {
    instants: [AtomicU64; 3],
}

impl LastSeen {
    pub(crate) const fn new() -> Self {
        Self {
            instants: [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    pub(crate) fn record(&self, sign: ResetOn, now: Duration) {
        let cell = &self.instants[index(sign)];
        let now = nanos(now);
        // A delayed writer must not take back what a faster one stored.
        if now > cell.load(Ordering::Acquire) {
            cell.fetch_max(now, Ordering::AcqRel);
        }
    }

    /// The latest sign that resets a window of this kind: a step is also
    /// content, and content is also bytes. Zero if there was none.
    #[inline]
    pub(crate) fn last(&self, resets_on: ResetOn) -> Nanos {
        let signs = &self.instants[..=index(resets_on)];
        signs
            .iter()
            .fold(0, |latest, cell| latest.max(cell.load(Ordering::Acquire)))
    }
}

const fn index(sign: ResetOn) -> usize {
    match sign {
        ResetOn::Step => 0,
        ResetOn::Content => 1,
        ResetOn::AnyByte => 2,
    }
}

#[inline]
pub(crate) fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).map_or(NEVER - 1, |nanos| nanos.min(NEVER - 1))
}

const fn duration(nanos: u64) -> Option<Duration> {
    if nanos == NEVER {
        None
    } else {
        Some(Duration::from_nanos(nanos))
    }
}
