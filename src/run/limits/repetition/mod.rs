//! Alive, but getting nowhere: the same thing over and over.

#[cfg(test)]
mod tests;

use std::{
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
};

/// How often a run may do the same before it looks stuck.
const REPEATS: NonZeroU32 = NonZeroU32::new(5).unwrap();

/// What a run did last, and how often in a row. Bytes and heartbeats of the wire
/// do not count here: they say that it is alive.
#[derive(Debug, Default)]
pub(crate) struct RepeatDetector(Mutex<Streak>);

#[derive(Debug, Default)]
pub(in crate::run) struct Streak {
    /// A digest of what was done; none after progress.
    last: Option<u64>,
    repeats: u32,
    /// Heartbeats of the program since the last action or progress.
    beats: u32,
    /// How many rows there were before this one.
    row: u64,
    /// At how many it is told next; at the limit if 0.
    next: u32,
    /// After how many the run ends.
    ends_at: Option<NonZeroU32>,
}

/// What a repetition amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repetition {
    /// It moves.
    Moving,
    /// It looks stuck, from now or from before.
    Stuck {
        /// How often the same was done, the first time included.
        repeats: u32,
        /// Whether this repetition is to be told: the first, and each that is as many
        /// further on.
        now: bool,
        /// Whether the run is to end for it.
        ends: bool,
    },
}

impl RepeatDetector {
    /// One of those was done once more. Equal digests are the same.
    pub(crate) fn repeat(&self, action: u64) -> Repetition {
        self.with(|streak| {
            if streak.last.replace(action) != Some(action) {
                streak.begin();
            }
            // Its actions can be seen, so they are what counts.
            streak.beats = 0;
            streak.repeats = streak.repeats.saturating_add(1);
            streak.standing(true)
        })
    }

    /// The program said that one more round began.
    pub(crate) fn beat(&self) -> Repetition {
        self.with(|streak| {
            streak.beats = streak.beats.saturating_add(1);
            streak.standing(true)
        })
    }

    /// There was progress.
    pub(crate) fn moved(&self) {
        self.with(|streak| {
            streak.last = None;
            streak.beats = 0;
            streak.begin();
        });
    }

    /// How it stands.
    pub(crate) fn standing(&self) -> Repetition {
        self.with(|streak| streak.standing(false))
    }

    /// Which row of the same it stands in; none if it moves.
    pub(crate) fn row(&self) -> Option<u64> {
        self.with(|streak| match streak.standing(false) {
            Repetition::Stuck { .. } => Some(streak.row),
            Repetition::Moving => None,
        })
    }

    /// Sets after how many times the run ends; the smaller limit stays.
    pub(crate) fn end_at(&self, repeats: NonZeroU32) {
        self.with(|streak| {
            let limit = streak.ends_at.map_or(repeats, |limit| limit.min(repeats));
            streak.ends_at = Some(limit);
        });
    }

    pub(in crate::run) fn with<R>(&self, f: impl FnOnce(&mut Streak) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Streak {
    pub(in crate::run) fn begin(&mut self) {
        self.row += 1;
        self.repeats = 0;
        self.next = 0;
    }

    pub(in crate::run) fn standing(&mut self, repeated: bool) -> Repetition {
        // What ends of it looks stuck at the latest then.
        let limit = self.ends_at.map_or(REPEATS, |end| end.min(REPEATS)).get();
        let repeats = self.repeats.max(self.beats);
        if repeats < limit {
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
