//! Finds loops among the last actions, and keeps which of them were reported already.

use std::{collections::VecDeque, sync::Arc};

use super::pattern::{LoopFinding, LoopLimits, LoopPattern, LoopVerdict};

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

/// How many loops are told apart at a time.
const LOOPS: usize = 16;

/// The loops that a run is in, so that each is told once per so many rounds.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    warned: VecDeque<Warned>,
    /// What would have ended the run.
    observed: VecDeque<Loop>,
}

/// A loop by its pattern, and its call or tool.
type Loop = (LoopPattern, u64);

#[derive(Debug)]
struct Warned {
    of: Loop,
    /// How often it came back, beyond what the window holds.
    times: u32,
    /// How often it had when it was told last; 0 if it was not.
    told: u32,
}

/// A loop was looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenLoop {
    /// How often it is in the window.
    pub(super) count: u32,
    /// It came back once more since it was looked at last.
    pub(super) again: bool,
}

impl Warnings {
    /// Answers how often it came back in all, if that is to be told: once per so many
    /// as `every` says now.
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
        let (times, told) = known.map_or((0, 0), |known| (known.times + more, known.told));
        let times = times.max(seen.count);
        let due = times / every > told / every;
        let told = if due { times } else { told };
        remember(&mut self.warned, Warned { of, times, told });
        due.then_some(times)
    }

    /// It would have ended the run, or would not. Answers whether that is to be told.
    pub(super) fn observe(&mut self, pattern: LoopPattern, subject: u64, reached: bool) -> bool {
        let of = (pattern, subject);
        let known = self.observed.iter().position(|known| *known == of);
        let known = known.and_then(|place| self.observed.remove(place));
        if reached {
            remember(&mut self.observed, of);
        }
        reached && known.is_none()
    }
}

fn remember<T>(loops: &mut VecDeque<T>, one: T) {
    if loops.len() >= LOOPS {
        loops.pop_front();
    }
    loops.push_back(one);
}
