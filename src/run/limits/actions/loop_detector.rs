//! Finds loops among the last actions, and remembers which of them were reported.

use std::{collections::VecDeque, sync::Arc};

use super::{
    loop_pattern::{LoopFinding, LoopLimits, LoopPattern, LoopVerdict},
    recent_calls::push_bounded,
};

/// Compares the counts of a run's loop patterns with the limits that end or report loops.
#[derive(Debug, Default)]
pub(super) struct LoopDetector {
    /// The limits on loops that end the run; `None` if none are set.
    limits: Option<LoopLimits>,
    /// The limits on loops that end nothing, and are only reported; `None` if none are set.
    observed: Option<LoopLimits>,
    /// The lists of the tools that poll.
    polls: Vec<Arc<[Box<str>]>>,
    /// The loops that are at a warning or observed limit, so that none is reported at every call.
    known: VecDeque<KnownLoop>,
}

/// A pattern that a run's last action shows, and its count.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownLoop<'a> {
    pub(super) pattern: LoopPattern,
    /// The digest of the pattern's last call.
    pub(super) call: u64,
    pub(super) tool: &'a Arc<str>,
    /// The number of remembered calls that are part of the loop.
    pub(super) count: u32,
    /// Whether a polling tool is part of the loop.
    pub(super) polls: bool,
    /// Whether a new action or result repeated the loop; false if only the limits changed.
    pub(super) again: bool,
    /// Whether another pattern reports the same loop with more detail.
    pub(super) is_reported: bool,
}

/// The factor on every limit for a loop with a polling tool.
const PATIENCE: u32 = 3;

/// The maximum of loops that a run remembers.
const LOOPS: usize = 16;

/// A loop that had reached its warning or its observed limit at its last count.
#[derive(Debug)]
struct KnownLoop {
    /// The pattern, and the digest of its call; 0 for a pattern without a call of its own.
    of: (LoopPattern, u64),
    /// The number of calls in the loop, those that the run has forgotten included; 0 if no warning
    /// limit is reached.
    times: u32,
    /// The value of `times` when a warning was last due; 0 if none was.
    reported: u32,
    /// Whether the loop was reported as one that would have ended the run.
    is_observed: bool,
}

impl LoopDetector {
    /// Sets limits on loops, which end the run or, without `ends`, are only reported. Of two values
    /// of one limit the smaller holds. Returns whether a limit changed.
    pub(super) fn limit(&mut self, limits: LoopLimits, ends: bool) -> bool {
        let place = match ends {
            true => &mut self.limits,
            false => &mut self.observed,
        };
        let tightened = place.map_or(limits, |there| there.tightened(limits));
        place.replace(tightened) != Some(tightened)
    }

    /// Adds a list of tools that poll. Lists add up.
    pub(super) fn add_polls(&mut self, tools: &Arc<[Box<str>]>) {
        if !self.polls.contains(tools) {
            self.polls.push(Arc::clone(tools));
        }
    }

    pub(super) fn polls(&self, tool: &str) -> bool {
        self.polls
            .iter()
            .any(|tools| tools.iter().any(|polls| **polls == *tool))
    }

    /// Forgets all reports, at a new turn of the user or a compaction of the run's context.
    pub(super) fn begin_anew(&mut self) {
        self.known.clear();
    }

    /// Passes to `report` the limits that the count of a pattern has reached.
    ///
    /// A limit that ends the run is reported at each call of this method, and then alone. A limit
    /// of shadow mode is reported once per loop. A warning comes at each multiple of its present
    /// value, unless another pattern reports the loop.
    pub(super) fn judge(&mut self, shown: ShownLoop<'_>, mut report: impl FnMut(LoopFinding)) {
        let ShownLoop { pattern, count, .. } = shown;
        let patience = if shown.polls { PATIENCE } else { 1 };
        let reached = |limits: Option<LoopLimits>| {
            let stop = limits.and_then(|limits| pattern.stop(&limits));
            stop.is_some_and(|stop| count >= stop * patience)
        };
        let mut find = |verdict, times| {
            report(LoopFinding {
                pattern,
                verdict,
                tool: Arc::clone(shown.tool),
                times,
            });
        };
        if reached(self.limits) {
            return find(LoopVerdict::Stopped, count);
        }
        let observed = self.observed();
        let mut known = self.take(shown);
        let is_observed = reached(observed);
        if is_observed && !known.is_observed {
            find(LoopVerdict::Observed, count);
        }
        let limits = [self.limits, observed].into_iter().flatten();
        let every = limits.filter_map(|limits| pattern.warn(&limits)).min();
        let every = every.map(|every| every * patience);
        let (mut times, mut reported) = (0, 0);
        if let Some(every) = every.filter(|every| count >= *every) {
            times = (known.times + u32::from(shown.again)).max(count);
            let is_due = times / every > known.reported / every;
            reported = if is_due { times } else { known.reported };
            if is_due && !shown.is_reported {
                find(LoopVerdict::Warned, times);
            }
        }
        (known.times, known.reported, known.is_observed) = (times, reported, is_observed);
        if is_observed || times > 0 {
            push_bounded(&mut self.known, LOOPS, known);
        }
    }

    /// Removes and returns the known loop of this pattern and call; a new loop if none is known.
    fn take(&mut self, shown: ShownLoop<'_>) -> KnownLoop {
        let subject = match shown.pattern {
            LoopPattern::SameCall | LoopPattern::SameTool => shown.call,
            // A loop of one of these patterns stays the same loop, whichever of its calls came last.
            LoopPattern::PingPong | LoopPattern::Cycle | LoopPattern::UnknownTool => 0,
        };
        let of = (shown.pattern, subject);
        let at = self.known.iter().position(|known| known.of == of);
        at.and_then(|at| self.known.remove(at))
            .unwrap_or(KnownLoop {
                of,
                times: 0,
                reported: 0,
                is_observed: false,
            })
    }

    /// The number of actions that the run must remember for its limits on loops.
    pub(super) fn size(&self) -> usize {
        match self.polls.is_empty() {
            true => self.window(),
            false => self.window() * PATIENCE as usize,
        }
    }

    /// The number of actions in which a loop without polling tools is looked for.
    pub(super) fn window(&self) -> usize {
        let limits = [self.limits, self.observed()].into_iter().flatten();
        limits.map(LoopLimits::window).max().unwrap_or_default()
    }

    /// The limits on loops that are only reported. If no limits of either kind are set, these are
    /// the default limits.
    fn observed(&self) -> Option<LoopLimits> {
        match self.limits {
            None => Some(self.observed.unwrap_or(LoopLimits::DEFAULT)),
            Some(_) => self.observed,
        }
    }
}
