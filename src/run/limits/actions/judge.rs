use std::sync::Arc;

use super::{
    limits::LoopLimits,
    pattern::{LoopFinding, LoopPattern, LoopVerdict},
    warnings::{SeenLoop, Warnings},
};

/// What a row amounts to, by the limits that were set.
#[derive(Debug, Default)]
pub(super) struct LoopDetector {
    /// Limits that end the run.
    limits: Option<LoopLimits>,
    /// Limits that end nothing.
    observed: Option<LoopLimits>,
    warnings: Warnings,
}

/// What was done several times, and how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct ActionRow<'a> {
    pub(super) pattern: LoopPattern,
    /// The call that was last.
    pub(super) call: u64,
    pub(super) tool: &'a Arc<str>,
    pub(super) seen: SeenLoop,
    /// Told as another pattern, which says more.
    pub(super) is_told: bool,
}

impl LoopDetector {
    /// Keeps the smaller of each limit. Answers whether that changed one.
    pub(super) fn limit(&mut self, limits: LoopLimits, ends: bool) -> bool {
        let place = match ends {
            true => &mut self.limits,
            false => &mut self.observed,
        };
        let tightened = place.map_or(limits, |there| there.tightened(limits));
        place.replace(tightened) != Some(tightened)
    }

    /// What came before is for another turn.
    pub(super) fn begin_anew(&mut self) {
        self.warnings = Warnings::default();
    }

    /// Tells what there is to say of a row.
    pub(super) fn judge(&mut self, row: ActionRow<'_>, mut tell: impl FnMut(LoopFinding)) {
        let ActionRow { pattern, seen, .. } = row;
        let reached = |limits: Option<LoopLimits>| {
            let stop = limits.and_then(|limits| pattern.stop(&limits));
            stop.is_some_and(|stop| seen.count >= stop)
        };
        let subject = match pattern {
            LoopPattern::SameCall | LoopPattern::SameTool => row.call,
            // Whichever was last, it is the same loop.
            LoopPattern::PingPong | LoopPattern::UnknownTool => 0,
        };
        let mut find = |verdict, times| {
            tell(LoopFinding {
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
        let told = [self.limits, observed].into_iter().flatten();
        if let Some(every) = told.filter_map(|limits| pattern.warn(&limits)).min() {
            let warned = self.warnings.warn(pattern, subject, seen, every);
            if let Some(times) = warned.filter(|_| !row.is_told) {
                find(LoopVerdict::Warned, times);
            }
        }
    }

    /// How many actions it takes to judge.
    pub(super) fn size(&self) -> usize {
        let limits = [self.limits, self.observed()].into_iter().flatten();
        limits.map(LoopLimits::window).max().unwrap_or_default()
    }

    /// The limits that end nothing: the usual ones, if nobody set any.
    fn observed(&self) -> Option<LoopLimits> {
        match self.limits {
            None => Some(self.observed.unwrap_or(LoopLimits::DEFAULT)),
            Some(_) => self.observed,
        }
    }
}
