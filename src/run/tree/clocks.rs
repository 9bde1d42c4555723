//! The clocks of one node: its absolute deadlines, its first window of silence, and the clocks that
//! few nodes have.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{
    idle_window::{IdleWindow, Pauses, WindowKind},
    nanos::{NEVER, Nanos, duration, nanos},
};
use crate::lock::Lock;

/// The kind of an absolute deadline of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    Ceiling,
    Timeout,
    /// The deadline of an attempt: its share of the remaining time, until the answer's commit.
    Share,
    /// The earliest deadline that the caller of this call announced and no layer has withdrawn.
    Announced,
    /// The time at which a run that is paused at a cap ends at the latest.
    Pause,
    /// The time at which a closing node ends at the latest.
    Drain,
}

/// A deadline that a caller announced and that is not yet withdrawn.
#[derive(Debug)]
pub(crate) struct Announcement {
    at: Nanos,
}

/// The clocks of one node: its absolute deadlines, its first window of silence, its pauses.
// `repr(C)`: the cells that are compared together stand side by side.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Clocks {
    ceiling: AtomicU64,
    share: AtomicU64,
    drain: AtomicU64,
    rare: OnceLock<Box<RareClocks>>,
    /// The window that one timer at a time takes, without the node's lock. Further windows of the
    /// node stand behind that lock.
    window: OnceLock<Box<IdleWindow>>,
}

/// The clocks and pauses that few nodes have, allocated together at the first need.
#[derive(Debug)]
pub(super) struct RareClocks {
    timeout: AtomicU64,
    /// The length of time by which the program has moved the ceiling and the timeout; 0 at first.
    /// A ceiling or timeout that is set later is moved, too.
    extension: AtomicU64,
    /// Whether the program has moved them by the one extension that it may make itself.
    extended_once: AtomicBool,
    /// The earliest deadline of `announcements`.
    announced: AtomicU64,
    /// All announced deadlines, one per layer that reads them from a request. The deadlines change
    /// under the lock, together with `announced`.
    announcements: Lock<Vec<Nanos>>,
    /// The pauses that began at this node; `pauses` adds those that began below it.
    pub(super) own_pauses: Pauses,
    pub(super) pauses: Pauses,
    /// The times for which the ceiling and the timeout stood still.
    standing: Standing,
    /// The deadline of `Clock::Pause`.
    paused_until: AtomicU64,
    /// The length of the window of tools at or below the node; zero for no window. `NEVER` if the
    /// nodes above decide.
    tool_window: AtomicU64,
}

/// The times for which the ceiling and the timeout of one node stood still.
///
/// The fields change under the node's lock, and are read without the lock.
#[derive(Debug, Default)]
struct Standing {
    count: AtomicU32,
    since: AtomicU64,
    total: AtomicU64,
}

impl Standing {
    fn begin(&self, now: Nanos) {
        if self.count.load(Ordering::Acquire) == 0 {
            self.since.store(now, Ordering::Release);
        }
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    fn end(&self, now: Nanos) {
        if self.count.load(Ordering::Acquire) == 1 {
            let lasted = now.saturating_sub(self.since.load(Ordering::Acquire));
            // Before the count: no reader finds a deadline that runs again, and is not moved.
            self.total.fetch_add(lasted, Ordering::AcqRel);
        }
        self.count.fetch_sub(1, Ordering::AcqRel);
    }

    /// The time since which the clocks stand; `None` while they run.
    #[inline]
    fn since(&self) -> Option<Nanos> {
        (self.count.load(Ordering::Acquire) > 0).then(|| self.since.load(Ordering::Acquire))
    }
}

impl Default for RareClocks {
    fn default() -> Self {
        Self {
            timeout: AtomicU64::new(NEVER),
            extension: AtomicU64::new(0),
            extended_once: AtomicBool::new(false),
            announced: AtomicU64::new(NEVER),
            announcements: Lock::default(),
            own_pauses: Pauses::default(),
            pauses: Pauses::default(),
            standing: Standing::default(),
            paused_until: AtomicU64::new(NEVER),
            tool_window: AtomicU64::new(NEVER),
        }
    }
}

impl Clocks {
    pub(crate) const fn new() -> Self {
        Self {
            ceiling: AtomicU64::new(NEVER),
            share: AtomicU64::new(NEVER),
            drain: AtomicU64::new(NEVER),
            rare: OnceLock::new(),
            window: OnceLock::new(),
        }
    }

    /// Takes the window in this node for a timer, and returns whether the window was free.
    pub(crate) fn take_window(&self, kind: WindowKind) -> bool {
        let window = self.window.get_or_init(|| Box::new(IdleWindow::new(kind)));
        window.take(kind)
    }

    /// Gives the taken window back, stopped and with no silence counted.
    pub(crate) fn give_window_back(&self) {
        if let Some(window) = self.window.get() {
            window.give_back();
        }
    }

    /// The window in this node, taken or not; one that is not taken is stopped. `None` until the
    /// first timer takes the window.
    #[inline]
    pub(crate) fn own_window(&self) -> Option<&IdleWindow> {
        self.window.get().map(|window| &**window)
    }

    pub(super) fn rare(&self) -> &RareClocks {
        self.rare.get_or_init(Box::default)
    }

    #[inline]
    pub(super) fn rare_if_any(&self) -> Option<&RareClocks> {
        self.rare.get().map(|rare| &**rare)
    }

    /// `[paused here, paused in this subtree]`.
    pub(super) fn pauses(&self) -> [bool; 2] {
        let rare = self.rare_if_any();
        rare.map_or([false; 2], |rare| {
            [rare.own_pauses.is_on(), rare.pauses.is_on()]
        })
    }

    /// Lowers the deadline of `clock` to `at`, if `at` is earlier. Returns whether it did.
    pub(crate) fn tighten(&self, clock: Clock, at: Duration) -> bool {
        let cell = match clock {
            Clock::Ceiling => &self.ceiling,
            Clock::Share => &self.share,
            Clock::Drain => &self.drain,
            Clock::Timeout => &self.rare().timeout,
            Clock::Announced => &self.rare().announced,
            Clock::Pause => &self.rare().paused_until,
        };
        let at = nanos(at);
        // The deadline is mostly set already: a load is cheaper than an exchange.
        at < cell.load(Ordering::Acquire) && at < cell.fetch_min(at, Ordering::AcqRel)
    }

    /// Sets the window of tools at or below the node; with zero they have no window.
    pub(crate) fn set_tool_window(&self, window: Duration) {
        self.rare()
            .tool_window
            .store(nanos(window), Ordering::Release);
    }

    /// The window that this node sets for tools at or below it; zero for no window. `None` if the
    /// nodes above decide.
    pub(super) fn tool_window(&self) -> Option<Duration> {
        duration(self.rare_if_any()?.tool_window.load(Ordering::Acquire))
    }

    /// Moves the ceiling and the timeout by `by`, unless this method moved them before. Returns
    /// whether they were moved now.
    pub(super) fn extend_once(&self, by: Duration) -> bool {
        let is_first = !self.rare().extended_once.swap(true, Ordering::AcqRel);
        if is_first {
            self.extend(by);
        }
        is_first
    }

    /// By how much the program has moved the ceiling and the timeout.
    pub(super) fn extended(&self) -> Duration {
        let extension = |rare: &RareClocks| rare.extension.load(Ordering::Acquire);
        Duration::from_nanos(self.rare_if_any().map_or(0, extension))
    }

    /// Moves the ceiling and the timeout by at least `to` in all.
    pub(super) fn extend_to(&self, to: Duration) {
        if !to.is_zero() {
            let to = nanos(to).min(NEVER - 1);
            self.rare().extension.fetch_max(to, Ordering::AcqRel);
        }
    }

    /// Moves the ceiling and the timeout by `by`.
    pub(super) fn extend(&self, by: Duration) {
        let more = |extension: Nanos| Some(extension.saturating_add(nanos(by)).min(NEVER - 1));
        let extension = &self.rare().extension;
        let (stored, failed) = (Ordering::AcqRel, Ordering::Acquire);
        // The update never fails.
        let _before = extension.fetch_update(stored, failed, more);
    }

    /// Clears the deadline of `Clock::Share`, because the attempt's answer was committed.
    pub(crate) fn lapse(&self) {
        self.share.store(NEVER, Ordering::Release);
    }

    /// Adds an announced deadline of `at`, which holds until it is [withdrawn](Self::withdraw).
    pub(crate) fn announce(&self, at: Duration) -> Announcement {
        let at = nanos(at);
        self.rare().change_announced(|all| all.push(at));
        Announcement { at }
    }

    /// Withdraws a deadline that was [announced](Self::announce). From then on the earliest of the
    /// other announced deadlines holds.
    pub(crate) fn withdraw(&self, announcement: Announcement) {
        self.rare().change_announced(|all| {
            // Of two equal deadlines either may be removed.
            if let Some(index) = all.iter().position(|at| *at == announcement.at) {
                all.swap_remove(index);
            }
        });
    }

    /// Withdraws all [announced](Self::announce) deadlines of the node.
    pub(crate) fn forget_announced(&self) {
        if let Some(rare) = self.rare_if_any() {
            rare.change_announced(Vec::clear);
        }
    }

    /// Lowers the drain deadline to `at`, at which a closing node ends at the latest. Returns
    /// whether `at` is earlier than the deadline before.
    pub(super) fn drain(&self, at: Duration) -> bool {
        let at = nanos(at);
        at < self.drain.fetch_min(at, Ordering::AcqRel)
    }

    pub(crate) fn get(&self, clock: Clock) -> Option<Duration> {
        let rare = self.rare_if_any();
        let cell = match clock {
            Clock::Ceiling => Some(&self.ceiling),
            Clock::Share => Some(&self.share),
            Clock::Drain => Some(&self.drain),
            Clock::Timeout => rare.map(|rare| &rare.timeout),
            Clock::Announced => rare.map(|rare| &rare.announced),
            Clock::Pause => rare.map(|rare| &rare.paused_until),
        };
        let at = cell?.load(Ordering::Acquire);
        let extension = match clock {
            Clock::Ceiling | Clock::Timeout => self.extension(),
            Clock::Share | Clock::Drain | Clock::Announced | Clock::Pause => 0,
        };
        duration(at.saturating_add(extension))
    }

    /// The time that is left until the deadline of `clock`, also while that stands still.
    pub(super) fn left(&self, clock: Clock, now: Duration) -> Option<Duration> {
        let rare = self.rare_if_any();
        let stands = rare.and_then(|rare| Some((rare, rare.standing.since()?)));
        let (Some((rare, since)), Clock::Ceiling | Clock::Timeout) = (stands, clock) else {
            return Some(self.get(clock)?.saturating_sub(now));
        };
        let cell = match clock {
            Clock::Ceiling => &self.ceiling,
            _ => &rare.timeout,
        };
        let at = cell.load(Ordering::Acquire);
        let at = duration(at.saturating_add(rare.moved()))?;
        Some(at.saturating_sub(Duration::from_nanos(since)))
    }

    /// Stops the ceiling and the timeout. The caller holds the node's lock.
    pub(super) fn stand(&self, now: Duration) {
        self.rare().standing.begin(nanos(now));
    }

    /// Undoes one [`stand`](Self::stand). The caller holds the node's lock.
    pub(super) fn go_on(&self, now: Duration) {
        self.rare().standing.end(nanos(now));
    }

    /// Sets the deadline of `Clock::Pause`, or takes it back.
    pub(crate) fn set_pause(&self, until: Option<Duration>) {
        let until = until.map_or(NEVER, nanos);
        self.rare().paused_until.store(until, Ordering::Release);
    }

    /// The absolute deadlines of the node that are set, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = Duration> {
        let clocks = [
            Clock::Ceiling,
            Clock::Timeout,
            Clock::Share,
            Clock::Announced,
            Clock::Pause,
            Clock::Drain,
        ];
        clocks.into_iter().filter_map(|clock| self.get(clock))
    }

    /// The length of time by which the ceiling and the timeout were moved; `NEVER` while they stand
    /// still.
    pub(crate) fn extension(&self) -> Nanos {
        self.rare_if_any().map_or(0, RareClocks::extension)
    }

    /// The earliest absolute deadline of the node; `None` if none is set.
    #[inline]
    pub(crate) fn next(&self) -> Option<Nanos> {
        let next = self.earliest();
        (next != NEVER).then_some(next)
    }

    /// The earliest absolute deadline of the node; `NEVER` if none is set.
    #[inline]
    pub(crate) fn earliest(&self) -> Nanos {
        let mut own = self.ceiling.load(Ordering::Acquire);
        let mut next = self.share.load(Ordering::Acquire);
        next = next.min(self.drain.load(Ordering::Acquire));
        if let Some(rare) = self.rare_if_any() {
            own = own.min(rare.timeout.load(Ordering::Acquire));
            own = own.saturating_add(rare.extension());
            next = next.min(rare.announced.load(Ordering::Acquire));
            next = next.min(rare.paused_until.load(Ordering::Acquire));
        }
        next.min(own)
    }
}

impl RareClocks {
    #[inline]
    fn extension(&self) -> Nanos {
        match self.standing.since() {
            Some(_) => NEVER,
            None => self.moved(),
        }
    }

    /// The length of time by which the program and the pauses that are over moved the deadlines.
    #[inline]
    fn moved(&self) -> Nanos {
        let extension = self.extension.load(Ordering::Acquire);
        extension.saturating_add(self.standing.total.load(Ordering::Acquire))
    }

    fn change_announced(&self, change: impl FnOnce(&mut Vec<Nanos>)) {
        let mut all = self.announcements.lock();
        change(&mut all);
        let earliest = all.iter().copied().min().unwrap_or(NEVER);
        self.announced.store(earliest, Ordering::Release);
    }
}
