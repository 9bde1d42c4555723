//! Finds loops among the last actions, and remembers which of them were reported.

use std::{collections::VecDeque, sync::Arc};

use super::pattern::{LoopFinding, LoopLimits, LoopPattern, LoopVerdict, push_bounded};

/// Compares the counts of a run's loop patterns with the limits that end or report loops.
#[derive(Debug, Default)]
pub(super) struct LoopDetector {
    /// The limits on loops that end the run; `None` if none are set.
    limits: Option<LoopLimits>,
    /// The limits on loops that end nothing, and are only reported; `None` if none are set.
    observed: Option<LoopLimits>,
    warnings: Warnings,
}

/// A pattern that a run's last action shows, and its count.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActionRow<'a> {
    pub(super) pattern: LoopPattern,
    /// The digest of the call that stands last in the pattern.
    pub(super) call: u64,
    pub(super) tool: &'a Arc<str>,
    pub(super) seen: SeenLoop,
    /// Whether another pattern reports the same loop with more detail.
    pub(super) is_reported: bool,
}

impl LoopDetector {
    /// Sets limits on loops, which end the run or, without `ends`, are only reported. Of two values
    /// of one limit the smaller holds. Answers whether a limit changed.
    pub(super) fn limit(&mut self, limits: LoopLimits, ends: bool) -> bool {
        let place = match ends {
            true => &mut self.limits,
            false => &mut self.observed,
        };
        let tightened = place.map_or(limits, |there| there.tightened(limits));
        place.replace(tightened) != Some(tightened)
    }

    /// Forgets all reports, because the user began another turn.
    pub(super) fn begin_anew(&mut self) {
        self.warnings = Warnings::default();
    }

    /// Reports a pattern to `report` if the pattern's count has reached a limit.
    pub(super) fn judge(&mut self, row: ActionRow<'_>, mut report: impl FnMut(LoopFinding)) {
        let ActionRow { pattern, seen, .. } = row;
        let reached = |limits: Option<LoopLimits>| {
            let stop = limits.and_then(|limits| pattern.stop(&limits));
            stop.is_some_and(|stop| seen.count >= stop)
        };
        let subject = match pattern {
            LoopPattern::SameCall | LoopPattern::SameTool => row.call,
            // A loop of these patterns is the same loop, whichever call was last.
            LoopPattern::PingPong | LoopPattern::UnknownTool => 0,
        };
        let mut find = |verdict, times| {
            report(LoopFinding {
                pattern,
                verdict,
                tool: Arc::clone(row.tool),
                times,
            });
        };
        if reached(self.limits) {
            return find(LoopVerdict::Stopped, seen.count);
        }
        let observed = self.observed();
        if self.warnings.observe(pattern, subject, reached(observed)) {
            find(LoopVerdict::Observed, seen.count);
        }
        let limits = [self.limits, observed].into_iter().flatten();
        if let Some(every) = limits.filter_map(|limits| pattern.warn(&limits)).min() {
            let warned = self.warnings.warn(pattern, subject, seen, every);
            if let Some(times) = warned.filter(|_| !row.is_reported) {
                find(LoopVerdict::Warned, times);
            }
        }
    }

    /// The number of actions that the run must remember for its limits on loops.
    pub(super) fn size(&self) -> usize {
        let limits = [self.limits, self.observed()].into_iter().flatten();
        limits.map(LoopLimits::window).max().unwrap_or_default()
    }

    /// The limits on loops that are only reported. If no limits that end the run are set either,
    /// they are the default ones.
    fn observed(&self) -> Option<LoopLimits> {
        match self.limits {
            None => Some(self.observed.unwrap_or(LoopLimits::DEFAULT)),
            Some(_) => self.observed,
        }
    }
}

/// The maximum of loops that a run remembers for each kind of report.
const LOOPS: usize = 16;

/// The loops of a run that were seen before, so that each is reported once per `every` rounds.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    warned: VecDeque<ReportedLoop>,
    /// The loops that were reported as ones that would have ended the run.
    observed: VecDeque<Loop>,
}

/// The identity of a loop: its pattern, and the digest of its call or tool.
type Loop = (LoopPattern, u64);

#[derive(Debug)]
struct ReportedLoop {
    of: Loop,
    /// The number of times that the loop came back, also beyond the window.
    times: u32,
    /// The value of `times` at the last report; 0 without one.
    reported: u32,
}

/// The state of one loop, as seen after an action.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenLoop {
    /// The number of times that the window of remembered actions holds the loop.
    pub(super) count: u32,
    /// Whether a new action or result repeated the loop; false if only the limits changed.
    pub(super) again: bool,
}

impl Warnings {
    /// Counts the loop, and answers its total count if a report is due: once per `every` rounds, by
    /// the present value of `every`.
    pub(super) fn warn(
        &mut self,
        pattern: LoopPattern,
        subject: u64,
        seen: SeenLoop,
        every: u32,
    ) -> Option<u32> {
        let of = (pattern, subject);
        let known = self.warned.iter().position(|warned| warned.of == of);
        let known = known.and_then(|place| self.warned.remove(place));
        if seen.count < every {
            return None;
        }
        let more = u32::from(seen.again);
        let (times, reported) = known.map_or((0, 0), |known| (known.times + more, known.reported));
        let times = times.max(seen.count);
        let due = times / every > reported / every;
        let reported = if due { times } else { reported };
        push_bounded(
            &mut self.warned,
            LOOPS,
            ReportedLoop {
                of,
                times,
                reported,
            },
        );
        due.then_some(times)
    }

    /// Records whether a loop has reached a limit that ends nothing. Answers whether that is new.
    pub(super) fn observe(&mut self, pattern: LoopPattern, subject: u64, reached: bool) -> bool {
        let of = (pattern, subject);
        let known = self.observed.iter().position(|known| *known == of);
        let known = known.and_then(|place| self.observed.remove(place));
        if reached {
            push_bounded(&mut self.observed, LOOPS, of);
        }
        reached && known.is_none()
    }
}
