use std::time::Duration;

use super::{
    deadlines::{Clock, Nanos},
    end::{End, EndHook, LimitHit, LimitKind},
    idle_window::TaskId,
    node::Node,
};
use crate::run::reason::TerminalReason;

impl<P: EndHook> Node<P> {
    /// Ends the outermost node from the root to here whose deadline has passed.
    ///
    /// `task` is the task that calls, in a poll that found everything pending; the check also looks
    /// at the step windows of that task.
    ///
    /// # Errors
    ///
    /// The stored end of this node, which may come from this check or from before.
    pub(crate) fn check(&self, now: Duration, task: TaskId) -> Result<(), End> {
        self.check_path(now, task);
        self.nearest_end().map_or(Ok(()), |end| Err(end.clone()))
    }

    /// Ends the outermost node on the path whose clock has passed. A node below an ended node
    /// is skipped.
    fn check_path(&self, now: Duration, task: TaskId) {
        let mut outermost = None;
        // The walk goes upwards, and not by recursion: a chain of sub-agents may be deep.
        for node in std::iter::once(self).chain(self.ancestors()) {
            if node.end.get().is_some() {
                outermost = None;
            } else if let Some(passed) = node.passed(now, task) {
                outermost = Some((node, passed));
            }
        }
        if let Some((node, (reason, passed))) = outermost {
            // `end` fails only if the node is over already.
            drop(node.end(reason, passed, now));
        }
    }

    /// The reason and the limit of this node's clock that has passed. The precedence is ceiling,
    /// step window, the caller's deadlines, and last the drain clock of a closing node.
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
        // The earliest deadline wins; in a tie the program's limit wins over the caller's.
        let earliest = callers.into_iter().flatten().min_by_key(|(at, _)| *at);
        if let Some((_, passed)) = earliest {
            return Some((TerminalReason::CallerDeadline, Some(passed)));
        }
        // The drain time belongs to running work, so this clock ranks below all others.
        let closed = absolute(Clock::Drain).and_then(|_| self.closing.get());
        closed.map(|closed| (closed.reason.clone(), closed.passed))
    }

    /// The step window and the caller's window that passed earliest, each with its time and limit.
    /// Only windows in which `task` waits are seen.
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
                // The earliest window wins, whichever layer added it.
                if slot.is_none_or(|(earlier, _)| at < earlier) {
                    *slot = Some((at, window.limit()));
                }
            }
        }
        earliest
    }
}
