//! Checks the clocks from the root to a node, and watches deadlines.
//!
//! A watcher waits for deadlines of a node without polling the node: a wait for a run, or the waker
//! of a pumped call.

use std::{
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    task::Waker,
    time::Duration,
};

use super::{
    clocks::{Announcement, Clock},
    end::End,
    idle_window::{IdleWindow, TaskId},
    nanos::Nanos,
    node::{EndHook, LockedNode, Node},
    node_kind::NodeKind,
    waiters::wake_all,
};
use crate::run::{
    limit_kind::{LimitHit, LimitKind},
    reason::TerminalReason,
};

impl<P: EndHook> Node<P> {
    /// Ends the outermost node, from the root down to this one, with a deadline that has passed.
    ///
    /// `task` is the calling task: the check includes the windows of silence in which this task
    /// waits. With `TaskId::NONE` the check reads absolute deadlines alone.
    ///
    /// # Errors
    ///
    /// The error is the stored end of this node, or else of its nearest ended ancestor. The end may
    /// come from this check or from before.
    pub(crate) fn check(&self, now: Duration, task: TaskId) -> Result<(), End> {
        self.check_path(now, task, true);
        self.nearest_end().map_or(Ok(()), |end| Err(end.clone()))
    }

    /// Checks as [`check`](Self::check) does with `TaskId::NONE`, for a caller that neither does
    /// work of this node nor is about to start some.
    ///
    /// A deadline that has passed on an [idle run](Self::is_only_idle) ends nothing here. The next
    /// work of that run hears it.
    pub(crate) fn check_from_outside(&self, now: Duration) -> Result<(), End> {
        self.check_path(now, TaskId::NONE, false);
        self.nearest_end().map_or(Ok(()), |end| Err(end.clone()))
    }

    /// Whether [`check`](Self::check) would find a deadline that has passed. Ends no node.
    pub(crate) fn has_passed(&self, now: Duration, task: TaskId) -> bool {
        self.path().any(|node| node.passed(now, task).is_some())
    }

    /// Ends the outermost node on the path with a clock that has passed. A node below an ended
    /// node is skipped.
    fn check_path(&self, now: Duration, task: TaskId, works: bool) {
        let mut outermost = None;
        // The walk goes upwards, and not by recursion: a chain of sub-agents may be deep.
        for node in self.path() {
            if node.end.get().is_some() {
                outermost = None;
            } else if let Some(passed) = node.passed(now, task) {
                if works || !node.is_only_idle() {
                    outermost = Some((node, passed));
                }
            }
        }
        if let Some((node, (reason, passed))) = outermost {
            // `end` fails only if the node is over already.
            drop(node.end(reason, passed, now));
        }
    }

    /// Whether this node is a run without work that its registry completes once it was idle for
    /// long enough.
    ///
    /// Such a run may be done, and then no limit has cut it. So a ceiling or timeout that passes
    /// ends the run only if work of it is in flight, or starts before the run completes.
    fn is_only_idle(&self) -> bool {
        self.kind == NodeKind::Run
            && !self.refuses_work()
            && !self.holds_pause()
            && (self.is_idle() || self.is_left_over(self.limit_of_own()))
            && self.payload.completes_when_idle(self)
    }

    /// The time at which the earliest absolute deadline of this very node passes.
    fn limit_of_own(&self) -> Duration {
        self.clocks
            .next()
            .map_or(Duration::ZERO, Duration::from_nanos)
    }

    /// The reason and the limit of the clock of this node that has passed. `None` if none has.
    ///
    /// The precedence is ceiling, an attempt's share, step window or floor on speed, then the earliest of the timeout
    /// and the caller's limits, the limit of a pause at a cap, and last the drain clock of a closing
    /// node.
    fn passed(&self, now: Duration, task: TaskId) -> Option<(TerminalReason, Option<LimitHit>)> {
        let absolute = |clock| self.clocks.get(clock).filter(|at| *at <= now);
        let set = |at: Duration, kind| LimitHit {
            limit: Some(at.saturating_sub(self.opened())),
            kind,
        };
        if let Some(at) = absolute(Clock::Ceiling).or_else(|| absolute(Clock::Share)) {
            let passed = set(at, LimitKind::Set);
            return Some((TerminalReason::HardCeiling, Some(passed)));
        }
        let [silent, unheard] = self.windows(now, task);
        if let Some((_, passed)) = silent {
            let reason = match passed.kind {
                LimitKind::Slow(_) => TerminalReason::Slow,
                _ => TerminalReason::StepTimeout,
            };
            return Some((reason, Some(passed)));
        }
        let callers = [
            absolute(Clock::Timeout).map(|at| (at, set(at, LimitKind::Set))),
            absolute(Clock::Announced).map(|at| (at, set(at, LimitKind::Announced))),
            unheard.map(|(at, passed)| (Duration::from_nanos(at), passed)),
        ];
        // The earliest deadline wins; in a tie the program's limit wins over the caller's.
        let earliest = callers.into_iter().flatten().min_by_key(|(at, _)| *at);
        if let Some((_, passed)) = earliest {
            return Some((TerminalReason::CallerDeadline, Some(passed)));
        }
        if absolute(Clock::Pause).is_some() {
            // Without a pause the clock was taken back meanwhile.
            if let Some((reason, passed)) = self.payload.pause() {
                return Some((reason, Some(passed)));
            }
        }
        // The drain clock only bounds the wait for running work, so it ranks below all others.
        absolute(Clock::Drain).and_then(|_| self.end_at_drain())
    }

    /// The window of silence or speed and the caller's window that passed earliest, with their times
    /// and limits.
    ///
    /// Only windows in which `task` waits count. During a pause only the caller's does.
    fn windows(&self, now: Duration, task: TaskId) -> [Option<(Nanos, LimitHit)>; 2] {
        let mut earliest = [None, None];
        if task == TaskId::NONE {
            return earliest;
        }
        let paused = self.is_paused();
        let inner = self.lock();
        for window in self.clocks.own_window().into_iter().chain(inner.windows()) {
            let callers = window.is_callers();
            let slot = &mut earliest[usize::from(callers)];
            if paused && !callers {
                continue;
            }
            if let Some(at) = window.passed_at(&self.life, now, task) {
                // The earliest window wins, whichever layer added it.
                if slot.is_none_or(|(earlier, _)| at < earlier) {
                    *slot = Some((at, window.limit()));
                }
            }
        }
        earliest
    }

    /// The earliest absolute deadline on the path from the root to this node.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.path().filter_map(|node| node.clocks.next()).min()
    }

    /// The earliest absolute deadline later than `now`, on the path from the root to this node.
    pub(crate) fn next_deadline_after(&self, now: Duration) -> Option<Duration> {
        let clocks = self.path().flat_map(|node| node.clocks.all());
        clocks.filter(|at| *at > now).min()
    }

    /// The earliest deadline of this clock on the path from the root to this node.
    pub(crate) fn deadline(&self, clock: Clock) -> Option<Duration> {
        self.path().filter_map(|node| node.clocks.get(clock)).min()
    }

    /// The time left until the earliest deadline of this clock on the path from the root to this
    /// node. Of a clock that stands still, the time that is left once it runs again.
    pub(crate) fn left_until(&self, clock: Clock, now: Duration) -> Option<Duration> {
        let path = self.path();
        path.filter_map(|node| node.clocks.left(clock, now)).min()
    }

    /// Whether an attempt below this node has a running step window of `limit` or longer.
    pub(crate) fn has_attempt_window(&self, limit: Duration) -> bool {
        let is_as_long = |node: &Self| {
            let inner = node.lock();
            let mut windows = node.step_windows(&inner);
            windows.any(|(_, window)| window.limit().limit >= Some(limit))
        };
        let mut found = false;
        self.descend(|node| {
            found |= node.kind() == NodeKind::Attempt && is_as_long(node);
            !found
        });
        found
    }

    /// The time at which the earliest step window from the root to this node passes.
    ///
    /// A sign of life before that time may move it. The windows of paused nodes do not count.
    pub(crate) fn next_window(&self) -> Option<Nanos> {
        let due = |node: &Self| {
            let inner = node.lock();
            node.step_windows(&inner).map(|(due, _)| due).min()
        };
        let nodes = self.path().filter(|node| !node.is_paused());
        nodes.filter_map(due).min()
    }

    /// The running step windows of this node, each with the time at which it passes.
    fn step_windows<'a>(
        &'a self,
        inner: &'a LockedNode<P>,
    ) -> impl Iterator<Item = (Nanos, &'a IdleWindow)> {
        let windows = self.clocks.own_window().into_iter().chain(inner.windows());
        let ours = windows.filter(|window| window.is_of_silence());
        ours.filter_map(|window| Some((window.due(&self.life)?, window)))
    }
}

impl<P: EndHook> Node<P> {
    pub(crate) fn add_window(&self, window: &Arc<IdleWindow>) {
        let key = self.lock().windows.insert(Arc::clone(window));
        window.keep(key);
    }

    /// Removes a window of silence that was added to this node.
    pub(crate) fn remove_window(&self, window: &IdleWindow) {
        let removed = self.lock().windows.remove(window.key());
        drop(removed);
    }

    /// The window for a tool at or below this node. The nearest node, from here up, that sets one
    /// decides. `None` if no node sets a window, or if that node sets zero.
    pub(crate) fn tool_window(&self) -> Option<Duration> {
        let window = self.path().find_map(|node| node.clocks.tool_window());
        window.filter(|window| !window.is_zero())
    }
}

/// The clocks of a node, for the layers that set them.
impl<P> Node<P> {
    /// Lowers the deadline of an attempt's share to `at`, before anyone waits for it.
    pub(crate) fn limit_share(&self, at: Duration) {
        self.clocks.tighten(Clock::Share, at);
    }

    /// Ends the limit of an attempt's share: its answer is committed.
    pub(crate) fn lapse_share(&self) {
        self.clocks.lapse();
    }

    /// The next absolute deadline of this very node.
    #[inline]
    pub(crate) fn own_deadline(&self) -> Option<Nanos> {
        self.clocks.next()
    }

    /// The time by which the program has moved the ceiling and the timeout.
    pub(crate) fn extension(&self) -> Nanos {
        self.clocks.extension()
    }

    /// Adds a deadline that the caller announced.
    pub(crate) fn announce(&self, at: Duration) -> Announcement {
        self.clocks.announce(at)
    }

    /// Removes a deadline that the caller announced.
    pub(crate) fn withdraw(&self, announcement: Announcement) {
        self.clocks.withdraw(announcement);
    }
}

impl<P: EndHook> Node<P> {
    /// Lowers the deadline of `clock` to `at`. If `at` is earlier than before, the method wakes the
    /// [watchers](Self::watch), to reset their timers.
    pub(crate) fn tighten(&self, clock: Clock, at: Duration) {
        if self.clocks.tighten(clock, at) {
            self.tightened();
        }
    }

    /// Moves the ceiling and the timeout of this node by `by`, once. Returns whether one was moved:
    /// false without either, and on a node that is over or refuses work. Timers that wait for the
    /// old deadline look again when they fire.
    pub(crate) fn extend_once(&self, by: Duration) -> bool {
        let set = |clock| self.clocks.get(clock).is_some();
        let is_open = !self.is_over() && !self.refuses_work();
        is_open && (set(Clock::Ceiling) || set(Clock::Timeout)) && self.clocks.extend_once(by)
    }

    /// Moves the ceiling and the timeout of this node by `by`, also those that are set later.
    pub(crate) fn extend(&self, by: Duration) {
        self.clocks.extend(by);
    }

    /// By how much the program has moved the node's ceiling and timeout.
    pub(crate) fn extended(&self) -> Duration {
        self.clocks.extended()
    }

    /// Moves the node's ceiling and timeout by at least `to` in all.
    pub(crate) fn extend_to(&self, to: Duration) {
        self.clocks.extend_to(to);
    }

    /// Wakes the [watchers](Self::watch) at, above and below this node, because a deadline of this
    /// node became earlier.
    pub(crate) fn tightened(&self) {
        // This fence pairs with the one in `watch`: the watcher sees the new deadline, or this
        // thread sees the watcher.
        fence(Ordering::SeqCst);
        let mut wakers = Vec::new();
        for ancestor in self.ancestors() {
            if ancestor.watched.load(Ordering::SeqCst) > 0 {
                ancestor.lock().waiters.collect(false, &mut wakers);
            }
        }
        if self.watched.load(Ordering::SeqCst) > 0 {
            self.collect_below(&mut wakers);
        }
        wake_all(wakers);
    }

    /// Makes the waiters of this node also wake when a deadline becomes earlier. The deadline may
    /// be one of this node, of a node above, or of a node below.
    pub(crate) fn watch(&self) {
        for node in self.path() {
            node.watched.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Undoes one [`watch`](Self::watch) of this node.
    pub(crate) fn unwatch(&self) {
        for node in self.path() {
            node.watched.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Checks this node and every node below [from outside](Self::check_from_outside), in one walk
    /// down.
    pub(crate) fn check_below(&self, now: Duration) {
        if self.check_from_outside(now).is_err() {
            return;
        }
        // All nodes above a visited one are live, and no clock of theirs has passed.
        self.descend(|node| {
            if node.end.get().is_some() {
                return false;
            }
            let passed = node.passed(now, TaskId::NONE);
            let Some((reason, limit)) = passed.filter(|_| !node.is_only_idle()) else {
                return true;
            };
            drop(node.end(reason, limit, now));
            false
        });
    }

    /// Whether all work below this node was over by the time `before`.
    ///
    /// Work is over through the end of its node, or through an earlier deadline of the ended node.
    /// Such work still counts as active, but does nothing more.
    pub(crate) fn is_left_over(&self, before: Duration) -> bool {
        let mut held = 0;
        self.descend(|node| {
            let Some(end) = node.end.get() else {
                return true;
            };
            // The check that stored the end of the work may have run long after the work's
            // deadline.
            let deadline = node.clocks.next().map(Duration::from_nanos);
            if deadline.map_or(end.at(), |at| at.min(end.at())) <= before {
                held += node.active.load(Ordering::SeqCst);
            }
            false
        });
        held >= self.active.load(Ordering::SeqCst)
    }

    pub(crate) fn children(&self) -> Vec<Arc<Self>> {
        self.lock().children.alive().collect()
    }

    /// Visits the nodes below this one, without recursion: a chain of sub-agents may be deep.
    ///
    /// The nodes below a visited one follow only if `visit` returns true.
    pub(in crate::run) fn descend(&self, mut visit: impl FnMut(&Self) -> bool) {
        let mut below = self.children();
        while let Some(node) = below.pop() {
            if visit(&node) {
                below.append(&mut node.children());
            }
        }
    }

    pub(super) fn collect_below(&self, wakers: &mut Vec<Waker>) {
        let mut below = Vec::new();
        self.collect(wakers, &mut below);
        while let Some(node) = below.pop() {
            node.collect(wakers, &mut below);
        }
    }
}
