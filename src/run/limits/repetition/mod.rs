//! Alive, but getting nowhere: the same thing over and over.

#[cfg(test)]
mod tests;

use std::{
    num::NonZeroU32,
    sync::{Mutex, PoisonError},
};

use crate::run::{handle::Run, reason::TerminalReason, report::Notice, state::Info, tree::Node};

/// How often a run may do the same before it looks stuck.
const REPEATS: NonZeroU32 = NonZeroU32::new(5).unwrap();

/// What a run did last, and how often in a row. Bytes and heartbeats of the wire
/// do not count here: they say that it is alive.
#[derive(Debug, Default)]
pub(crate) struct Standstill(Mutex<Streak>);

#[derive(Debug, Default)]
struct Streak {
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
pub(crate) enum Standing {
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

impl Standstill {
    /// One of those was done once more. Equal digests are the same.
    pub(crate) fn repeat(&self, action: u64) -> Standing {
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
    pub(crate) fn beat(&self) -> Standing {
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
    pub(crate) fn standing(&self) -> Standing {
        self.with(|streak| streak.standing(false))
    }

    /// Which row of the same it stands in; none if it moves.
    pub(crate) fn row(&self) -> Option<u64> {
        self.with(|streak| match streak.standing(false) {
            Standing::Stuck { .. } => Some(streak.row),
            Standing::Moving => None,
        })
    }

    /// Sets after how many times the run ends; the smaller limit stays.
    pub(crate) fn end_at(&self, repeats: NonZeroU32) {
        self.with(|streak| {
            let limit = streak.ends_at.map_or(repeats, |limit| limit.min(repeats));
            streak.ends_at = Some(limit);
        });
    }

    fn with<R>(&self, f: impl FnOnce(&mut Streak) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Streak {
    fn begin(&mut self) {
        self.row += 1;
        self.repeats = 0;
        self.next = 0;
    }

    fn standing(&mut self, repeated: bool) -> Standing {
        // What ends of it looks stuck at the latest then.
        let limit = self.ends_at.map_or(REPEATS, |end| end.min(REPEATS)).get();
        let repeats = self.repeats.max(self.beats);
        if repeats < limit {
            return Standing::Moving;
        }
        let now = repeated && repeats >= self.next;
        if now {
            self.next = repeats.saturating_add(limit);
        }
        Standing::Stuck {
            repeats,
            now,
            ends: self.ends_at.is_some_and(|end| repeats >= end.get()),
        }
    }
}

impl Run {
    /// The run did these, one after the other; the same digest means the same again,
    /// and none that it moved. However many they are, one streak that looked stuck is
    /// told, the last.
    pub(crate) fn acted(&self, actions: impl Iterator<Item = Option<u64>>) {
        let standstill = &self.nearest().payload.harness().standstill;
        let mut told = Standing::Moving;
        for action in actions {
            let Some(action) = action else {
                standstill.moved();
                continue;
            };
            let standing = standstill.repeat(action);
            match standing {
                Standing::Stuck { ends: true, .. } => {
                    told = standing;
                    break;
                }
                Standing::Stuck { now: true, .. } => told = standing,
                Standing::Moving | Standing::Stuck { .. } => {}
            }
        }
        self.stands(told);
    }

    /// A round of the agent's loop began: a sign of life that is no progress, as
    /// [`heartbeat`](Self::heartbeat). Where nobody sees what the agent does, five
    /// of them without a [`state_change`](Self::state_change) between them look
    /// stuck.
    pub fn heartbeat_at(&self, iteration: u64, phase: &str) {
        tracing::trace!(target: "tower_agent", run = %self.id(), iteration, phase, "heartbeat");
        self.heartbeat();
        self.stands(self.nearest().payload.harness().standstill.beat());
    }

    /// Ends the nearest run as [`Stuck`](TerminalReason::Stuck) once it has done
    /// the same thing `repeats` times in a row, the first time included. It looks
    /// stuck after five in any case, or after as many as these if they are fewer:
    /// [observers](Self::subscribe) are told then, and after every as many more.
    ///
    /// The same is an action of the same name and arguments, whatever came of it.
    /// Of two limits the smaller stays.
    pub fn end_when_stuck(&self, repeats: NonZeroU32) {
        let standstill = &self.nearest().payload.harness().standstill;
        standstill.end_at(repeats);
    }

    /// Whether the nearest run has done the same thing too often in a row.
    pub(crate) fn is_stuck(&self) -> bool {
        self.nearest().is_stuck()
    }

    /// In which row of the same the nearest run is stuck, if it is: another one says
    /// that it has moved in between.
    pub(crate) fn stuck_in(&self) -> Option<u64> {
        let harness = self.nearest().payload.harness_if_any()?;
        harness.standstill.row()
    }

    fn stands(&self, standing: Standing) {
        match standing {
            Standing::Stuck { ends: true, .. } => {
                self.run().end(TerminalReason::Stuck);
            }
            Standing::Stuck {
                now: true, repeats, ..
            } => {
                self.notify(&Notice::LooksStuck { repeats });
            }
            Standing::Moving | Standing::Stuck { .. } => {}
        }
    }
}

impl Node<Info> {
    /// Whether the run has done the same thing too often in a row.
    pub(in crate::run) fn is_stuck(&self) -> bool {
        let harness = self.payload.harness_if_any();
        harness.is_some_and(|harness| harness.standstill.standing() != Standing::Moving)
    }
}
