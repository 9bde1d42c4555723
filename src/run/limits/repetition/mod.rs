//! Detects a run that repeats one action, or reports rounds of its loop, without progress.

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use crate::lock::Lock;

/// The number of equal actions in a row, or of rounds without progress, at which a run looks stuck.
/// The first action counts. A smaller limit of the run replaces the number.
const REPEATS: NonZeroU32 = NonZeroU32::new(5).unwrap();

/// Counts how often a run repeats its last action in a row, and its reported rounds.
///
/// The rounds are those since the last action or progress; the larger count decides. Bytes, pings
/// and the program's other heartbeats do not count, because they only show that the run is alive.
#[derive(Debug, Default)]
pub(crate) struct RepeatDetector(Lock<Streak>);

#[derive(Debug, Default)]
pub(in crate::run) struct Streak {
    /// The digest of the last action; `None` after progress.
    last: Option<u64>,
    repeats: u32,
    /// The number of rounds that the program reported since the last action or progress.
    beats: u32,
    /// The number of times that a new series began, at another action or at progress.
    series: u64,
    /// The count of repeats at which the next notice is due; 0 if it is due at the limit.
    next: u32,
    /// The count of repeats at which the run ends; `None` if it never does.
    ends_at: Option<NonZeroU32>,
}

/// The result of counting an action or a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    /// The run does not look stuck: its repeats and rounds are below the limit.
    Moving,
    /// The run looks stuck, from now or from before.
    Stuck {
        /// The number of equal actions in a row, the first included, or of rounds if these are
        /// more.
        repeats: u32,
        /// Whether this repeat is due for a report. The first report is due at the limit, and
        /// another each time that as many more repeats have come.
        now: bool,
        /// Whether the run must end, because its repeats have reached the limit.
        ends: bool,
    },
}

impl RepeatDetector {
    /// Counts an action of the run. Equal digests are the same action.
    pub(crate) fn repeat(&self, action: u64) -> Repetition {
        let mut streak = self.0.lock();
        if streak.last.replace(action) != Some(action) {
            streak.begin();
        }
        // The run reports its actions, so these count instead of rounds.
        streak.beats = 0;
        streak.repeats = streak.repeats.saturating_add(1);
        streak.repetition(true)
    }

    /// Counts a heartbeat that the program sent at the start of a round.
    pub(crate) fn beat(&self) -> Repetition {
        let mut streak = self.0.lock();
        streak.beats = streak.beats.saturating_add(1);
        streak.repetition(true)
    }

    /// Resets the counts after progress.
    pub(crate) fn moved(&self) {
        let mut streak = self.0.lock();
        streak.last = None;
        streak.beats = 0;
        streak.begin();
    }

    /// The present state of the repetition, without a new action.
    pub(crate) fn repetition(&self) -> Repetition {
        self.0.lock().repetition(false)
    }

    /// The number of the series in which the run is stuck; `None` if it is not stuck.
    pub(crate) fn series(&self) -> Option<u64> {
        let mut streak = self.0.lock();
        (streak.repetition(false) != Repetition::Moving).then_some(streak.series)
    }

    /// Sets the count of repeats at which the run ends; of two limits the smaller holds.
    pub(crate) fn end_at(&self, repeats: NonZeroU32) {
        let mut streak = self.0.lock();
        let limit = streak.ends_at.map_or(repeats, |limit| limit.min(repeats));
        streak.ends_at = Some(limit);
    }
}

impl Streak {
    pub(in crate::run) fn begin(&mut self) {
        self.series += 1;
        self.repeats = 0;
    }

    pub(in crate::run) fn repetition(&mut self, repeated: bool) -> Repetition {
        // A run that ends at fewer repeats looks stuck at that count.
        let limit = self.ends_at.map_or(REPEATS, |end| end.min(REPEATS)).get();
        let repeats = self.repeats.max(self.beats);
        if repeats < limit {
            self.next = 0;
            return Repetition::Moving;
        }
        let now = repeated && repeats >= self.next;
        if now {
            self.next = repeats.saturating_add(limit);
        }
        Repetition::Stuck {
            repeats,
            now,
            ends: self.ends_at.is_some_and(|end| repeats >= end.get()),
        }
    }
}
