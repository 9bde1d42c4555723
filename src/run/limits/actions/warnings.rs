//! What was told already.

use std::collections::VecDeque;

use super::pattern::LoopPattern;

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
