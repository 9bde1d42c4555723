use std::time::Duration;

use super::{
    deadlines::{Clock, Nanos},
    end::{End, EndHook, LimitHit, LimitKind},
    idle_window::TaskId,
    node::Node,
};
use crate::run::reason::TerminalReason;

impl<P: EndHook> Node<P> {
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

    /// Ends the outermost node from the root to here whose clock has passed, unless one
    /// further out is over.
    fn check_path(&self, now: Duration, task: TaskId) {
        let mut outermost = None;
        // Upwards, so without recursion: a chain of sub-agents may be deep.
        for node in std::iter::once(self).chain(self.ancestors()) {
            if node.end.get().is_some() {
                outermost = None;
            } else if let Some(passed) = node.passed(now, task) {
                outermost = Some((node, passed));
            }
        }
        if let Some((node, (reason, passed))) = outermost {
            // Losing means that it is over as well.
            drop(node.end(reason, passed, now));
        }
    }

    /// Which of this node's clocks has passed: ceiling, step, caller's, and last
    /// the one of a node that is closing.
    fn passed(&self, now: Duration, task: TaskId) -> Option<(TerminalReason, Option<LimitHit>)> {
        let absolute = |clock| self.clocks.get(clock).filter(|at| *at <= now);
        let set = |at: Duration, measure| LimitHit {
            limit: Some(at.saturating_sub(self.opened)),
            measure,
        };
        if let Some(at) = absolute(Clock::Ceiling).or_else(|| absolute(Clock::Share)) {
            let passed = set(at, LimitKind::Set);
            return Some((TerminalReason::HardCeiling, Some(passed)));
        }
        let [silent, unheard] = self.windows(now, task);
        if let Some((_, passed)) = silent {
            return Some((TerminalReason::StepTimeout, Some(passed)));
        }
        let callers = [
            absolute(Clock::Timeout).map(|at| (at, set(at, LimitKind::Set))),
            absolute(Clock::Announced).map(|at| (at, set(at, LimitKind::Announced))),
            unheard.map(|(at, passed)| (Duration::from_nanos(at), passed)),
        ];
        // The earliest wins, and of a tie the program's.
        let earliest = callers.into_iter().flatten().min_by_key(|(at, _)| *at);
        if let Some((_, passed)) = earliest {
            return Some((TerminalReason::CallerDeadline, Some(passed)));
        }
        // It was given to what went on, not to whoever waits.
        let closed = absolute(Clock::Drain).and_then(|_| self.closing.get());
        closed.map(|closed| (closed.reason.clone(), closed.passed))
    }

    /// When the earliest step window and the earliest of a caller's passed, and
    /// what they were, as far as `task` can know.
    fn windows(&self, now: Duration, task: TaskId) -> [Option<(Nanos, LimitHit)>; 2] {
        let mut earliest = [None, None];
        if task == TaskId::NONE {
            return earliest;
        }
        let paused = self.is_paused();
        for window in self.lock().windows.iter() {
            let callers = window.is_callers();
            let slot = &mut earliest[usize::from(callers)];
            if paused && !callers {
                continue;
            }
            if let Some(at) = window.passed_at(&self.life, now, task) {
                // Whichever layer came first.
                if slot.is_none_or(|(earlier, _)| at < earlier) {
                    *slot = Some((at, window.limit()));
                }
            }
        }
        earliest
    }
}
