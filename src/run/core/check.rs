use std::time::Duration;

use super::{Clock, End, Hook, Node, TaskId};
use crate::run::TerminalReason;

impl<P: Hook> Node<P> {
    /// Ends the outermost node on the path from the root whose deadline has
    /// come, and answers why this node is over.
    ///
    /// `task` is the task that asks, in a poll in which all it waits for was
    /// pending: its own step windows count too.
    ///
    /// # Errors
    ///
    /// The end of this node, from now or from before.
    pub(crate) fn check(&self, now: Duration, task: TaskId) -> Result<(), End> {
        self.check_path(now, task);
        self.nearest_end().map_or(Ok(()), |end| Err(end.clone()))
    }

    /// From the root to here, until one is over; answers whether one is.
    fn check_path(&self, now: Duration, task: TaskId) -> bool {
        if self.parent().is_some_and(|node| node.check_path(now, task)) {
            return true;
        }
        if self.end.get().is_none() {
            let Some((reason, limit)) = self.passed(now, task) else {
                return false;
            };
            // Losing means that it is over as well.
            drop(self.end(reason, Some(limit), now));
        }
        true
    }

    /// Which of this node's clocks has passed: ceiling, step, caller's.
    fn passed(&self, now: Duration, task: TaskId) -> Option<(TerminalReason, Duration)> {
        let absolute = |clock| {
            let at = self.clocks.get(clock)?;
            (at <= now).then(|| at.saturating_sub(self.opened))
        };
        if let Some(limit) = absolute(Clock::Ceiling).or_else(|| absolute(Clock::Share)) {
            return Some((TerminalReason::HardCeiling, limit));
        }
        if task != TaskId::NONE && !self.is_paused() {
            let inner = self.lock();
            let windows = inner.windows.iter().map(|(_, window)| window);
            let passed = windows.filter_map(|w| Some((w.passed_at(&self.life, now, task)?, w)));
            // The earliest wins, whichever layer came first.
            if let Some((_, window)) = passed.min_by_key(|(at, _)| *at) {
                return Some((TerminalReason::StepTimeout, window.length()));
            }
        }
        absolute(Clock::Timeout).map(|limit| (TerminalReason::CallerDeadline, limit))
    }
}
