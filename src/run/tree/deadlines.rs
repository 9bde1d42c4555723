use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{lock::Lock, run::kinds::ResetOn};

/// A time in nanoseconds since the tree was opened.
///
/// A clock is stored and compared in this unit, because a [`Duration`] would have to be
/// converted for every frame.
pub(crate) type Nanos = u64;

const NEVER: Nanos = Nanos::MAX;

/// The kind of an absolute deadline of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    Ceiling,
    Timeout,
    /// The deadline of an attempt: its share of the remaining time, until the answer's commit.
    Share,
    /// The deadline that the caller of this call announced.
    Announced,
    /// The time at which a closing node ends at the latest.
    Drain,
}

/// A deadline that a caller announced and that is not yet withdrawn.
#[derive(Debug)]
pub(crate) struct Announcement {
    at: Nanos,
}

/// The absolute deadlines of one node, in nanoseconds since the tree opened.
// `repr(C)`: the cells that are compared together stand side by side.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Clocks {
    ceiling: AtomicU64,
    timeout: AtomicU64,
    share: AtomicU64,
    /// The earliest deadline of `announcements`.
    announced: AtomicU64,
    drain: AtomicU64,
    /// All announced deadlines, one per layer that reads them from a request. They change under the
    /// lock, together with `announced`.
    announcements: Lock<Vec<Nanos>>,
}

impl Clocks {
    pub(crate) const fn new() -> Self {
        Self {
            ceiling: AtomicU64::new(NEVER),
            timeout: AtomicU64::new(NEVER),
            share: AtomicU64::new(NEVER),
            announced: AtomicU64::new(NEVER),
            drain: AtomicU64::new(NEVER),
            announcements: Lock::new(Vec::new()),
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

    /// Lowers the deadline of `clock` to `at`, and answers whether it did. A later `at` is ignored.
    pub(crate) fn tighten(&self, clock: Clock, at: Duration) -> bool {
        let cell = self.cell(clock);
        let at = nanos(at);
        // The deadline is mostly set already: a load is cheaper than an exchange.
        at < cell.load(Ordering::Acquire) && at < cell.fetch_min(at, Ordering::AcqRel)
    }

    /// Clears the attempt's share of the time at the commit, up to which it limits the attempt.
    pub(crate) fn lapse(&self) {
        self.share.store(NEVER, Ordering::Release);
    }

    /// Adds an announced deadline of `at`, which holds until it is [withdrawn](Self::withdraw).
    pub(crate) fn announce(&self, at: Duration) -> Announcement {
        let at = nanos(at);
        self.change_announced(|all| all.push(at));
        Announcement { at }
    }

    /// Withdraws a deadline that was [announced](Self::announce): the earliest of the other
    /// announced deadlines holds from then on.
    pub(crate) fn withdraw(&self, announcement: Announcement) {
        self.change_announced(|all| {
            // Of two equal deadlines either may be removed.
            if let Some(index) = all.iter().position(|at| *at == announcement.at) {
                all.swap_remove(index);
            }
        });
    }

    /// Withdraws all [announced](Self::announce) deadlines of the node.
    pub(crate) fn forget_announced(&self) {
        self.change_announced(Vec::clear);
    }

    fn change_announced(&self, change: impl FnOnce(&mut Vec<Nanos>)) {
        let mut all = self.announcements.lock();
        change(&mut all);
        let earliest = all.iter().copied().min().unwrap_or(NEVER);
        self.announced.store(earliest, Ordering::Release);
    }

    /// Sets the drain clock: the node ends at `at`, or when its last piece of work leaves. Answers
    /// whether `at` is earlier than before.
    ///
    /// The order is `SeqCst`, like that of the count of active work: this thread sees the count, or
    /// the last piece of work sees the clock.
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

    /// The earliest deadline of all clocks of the node; `None` if none is set.
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

/// The last instants of a byte, of content and of a step on one node.
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

    /// The time of the latest sign that resets a window of this kind; zero if there was none. A
    /// step counts as content, and content counts as bytes.
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
