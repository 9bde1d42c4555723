//! One wait of the reader: which clock passes first.

use tower_agent::{ResetOn, TerminalReason};

use super::{Model, RUN, Sign, TICK, Wait, Window};
use crate::tests::stacks::{outside::Check, plan::Action};

impl Model<'_> {
    /// The time of `[from, to]` that a pause did not take.
    fn unpaused(&self, from: u64, to: u64) -> u64 {
        let Some((begin, end)) = self.pause() else {
            return to - from;
        };
        let paused = end.min(to).saturating_sub(begin.max(from));
        to - from - paused
    }

    fn pause(&self) -> Option<(u64, u64)> {
        let (from, span) = self.plan.pause?;
        let from = from * TICK + 2;
        Some((from, from + span * TICK))
    }

    /// When a window that has `left` to go from `from` on passes.
    fn due(&self, from: u64, left: u64) -> u64 {
        let Some((begin, end)) = self.pause() else {
            return from + left;
        };
        let plain = from + left;
        if end <= from || plain < begin {
            plain
        } else {
            // It stops for the part of the pause that is still to come.
            plain + end - begin.max(from)
        }
    }

    /// When a tool with a window of its own works, for which the run's window stands.
    fn tool(&self, window: &Window) -> Option<(u64, u64)> {
        let tool = self.plan.tool.filter(|_| window.level == RUN)?;
        Some((tool.starts * TICK + 2, tool.over()? * TICK + 2))
    }

    /// How much of a window is used at `to`.
    fn used(&self, window: &Window, from: u64, to: u64) -> u64 {
        match self.tool(window) {
            Some((_, end)) if from < end && end <= to => to - end,
            Some((begin, end)) if begin < to && from < end => {
                window.kept + begin.saturating_sub(from)
            }
            _ => window.kept + self.unpaused(from, to),
        }
    }

    /// When a window passes; never, if nothing is expected of it.
    fn window_due(&self, from: u64, window: &Window) -> Option<u64> {
        let runs = window.alive != Some(false);
        let left = window.length.saturating_sub(window.kept);
        runs.then(|| match self.tool(window) {
            // The window begins anew as the tool is over.
            Some((begin, end)) if from < end && from + left >= begin => end + window.length,
            _ => self.due(from, left),
        })
    }

    /// The clocks that have passed at `now`, in the order of the design; `from`
    /// is when the wait began.
    pub(super) fn all_passed(&self, from: u64, now: u64) -> Vec<(usize, TerminalReason)> {
        let has = |at: Option<u64>| at.is_some_and(|at| at <= now);
        let due = |window: &Window| self.window_due(from, window);
        let mut passed = Vec::new();
        for (level, clocks) in self.clocks.iter().enumerate() {
            let mut windows = self.windows.iter().filter(|window| window.level == level);
            let reasons = [
                (has(clocks.ceiling), TerminalReason::HardCeiling),
                (
                    windows.any(|window| has(due(window))),
                    TerminalReason::StepTimeout,
                ),
                (has(clocks.deadline()), TerminalReason::CallerDeadline),
            ];
            passed.extend(
                reasons
                    .into_iter()
                    .filter(|(has, _)| *has)
                    .map(|(_, reason)| (level, reason)),
            );
        }
        passed
    }

    /// The next time at which any clock passes.
    fn next_clock(&self, from: u64) -> Option<u64> {
        let absolute = self
            .clocks
            .iter()
            .flat_map(|clocks| [clocks.ceiling, clocks.deadline()]);
        let windows = self
            .windows
            .iter()
            .map(|window| self.window_due(from, window));
        absolute
            .chain(windows)
            .flatten()
            .min()
            .map(|at| at.max(from))
    }

    pub(super) fn action(&self) -> Option<(usize, TerminalReason, u64)> {
        let verdict = self.plan.check.and_then(Check::ends);
        let (level, reason, at) = match (self.plan.action, verdict) {
            (_, Some(at)) => (RUN, TerminalReason::Stuck, at),
            (Some((at, Action::Shutdown)), _) => (RUN, TerminalReason::Shutdown, at),
            (Some((at, Action::Abort)), _) => (self.call(), TerminalReason::Aborted, at),
            (Some((_, Action::Attempt)) | None, None) => return None,
        };
        let at = at * TICK + 2;
        // An end looks at the deadlines first, which no task may have seen.
        let has = |at_most: Option<u64>| at_most.is_some_and(|passes| passes <= at);
        let above = self.clocks[..=level].iter().enumerate();
        let mut passed = above.filter_map(|(level, clocks)| {
            let ceiling = has(clocks.ceiling).then_some(TerminalReason::HardCeiling);
            let timeout = has(clocks.deadline()).then_some(TerminalReason::CallerDeadline);
            Some((level, ceiling.or(timeout)?))
        });
        let (level, reason) = passed.next().unwrap_or((level, reason));
        Some((level, reason, at))
    }

    /// The reader waits from `from` on for something that comes after `span`.
    pub(super) fn wait(
        &mut self,
        from: u64,
        span: Option<u64>,
        patience: Option<u64>,
        sign: Sign,
    ) -> Wait {
        if let Some((level, reason, at)) = self.action().filter(|&(_, _, at)| at < from) {
            return Wait::Ended(level, reason, at, vec![]);
        }
        if span == Some(0) {
            self.count(from, from, sign);
            return Wait::Given(from);
        }
        if self.content {
            for window in &mut self.windows {
                if !(window.outside && self.holds) {
                    window.length = window.step;
                }
            }
        }
        let given = span.map(|span| from + span);
        let clock = self.next_clock(from);
        let left = patience.map(|patience| from + patience);
        let acted = self.action().map(|(_, _, at)| at);
        let Some(first) = [given, clock, left, acted].into_iter().flatten().min() else {
            unreachable!("a reader that waits for ever");
        };
        if given == Some(first) {
            self.count(from, first, sign);
            Wait::Given(first)
        } else if clock == Some(first) {
            let mut passed = self.all_passed(from, first);
            let (level, reason) = passed.remove(0);
            let tied = passed.into_iter().map(|(_, reason)| reason);
            let mut tied: Vec<_> = tied.filter(|_| first == from).collect();
            if acted == Some(first) {
                // A window may pass as a pause ends, on a half tick: two tasks.
                tied.extend(self.action().map(|(_, reason, _)| reason));
            }
            Wait::Ended(level, reason, first, tied)
        } else if acted == Some(first) {
            let (level, reason, at) = self.action().unwrap();
            Wait::Ended(level, reason, at, vec![])
        } else {
            Wait::Left(first)
        }
    }

    fn count(&mut self, from: u64, to: u64, sign: Sign) {
        let used: Vec<_> = self
            .windows
            .iter()
            .map(|it| self.used(it, from, to))
            .collect();
        for (window, used) in self.windows.iter_mut().zip(used) {
            let resets = match window.resets_on {
                _ if sign == Sign::Told => window.alive.is_some(),
                ResetOn::Content => sign == Sign::Content,
                ResetOn::AnyByte if sign == Sign::Head => !(window.outside && self.holds),
                ResetOn::AnyByte => sign != Sign::Nothing,
                _ => false,
            };
            let held = window.outside && self.holds;
            if sign == Sign::Told || (sign == Sign::Ping && !held) {
                window.alive = window.alive.map(|_| true);
            }
            window.kept = if resets { 0 } else { used };
        }
        self.content |= sign == Sign::Content;
    }
}
