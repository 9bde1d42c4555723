//! The turns of a run, and its last call at the cap.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

/// The number of turns of a run. It stands behind a lock, so that concurrent calls cannot exceed
/// the cap.
#[derive(Debug, Default)]
pub(crate) struct TurnCount {
    pub(in crate::run) taken: u32,
    pub(in crate::run) last: LastCall,
}

/// The state of the one call that a run may make after its cap on turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LastCall {
    /// The cap on turns is not reached.
    #[default]
    Ahead,
    /// The run is held open for its last call.
    Held,
    /// The last call was made, or its time has passed.
    Over,
}

/// The cap on turns that one layer sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnLimit {
    pub(crate) turns: u32,
    /// The time for which the run stays open for its last call; `None` if it may make none.
    pub(crate) finaliser: Option<Duration>,
}

impl TurnCount {
    /// Counts a turn of the run, unless `number` shows that the turn was counted before.
    ///
    /// Answers the turn's number; `None` if the number would exceed the cap: then it is no turn.
    pub(in crate::run) fn take(&mut self, cap: u32, number: &AtomicU32) -> Option<u32> {
        match number.load(Ordering::Acquire) {
            0 if self.taken < cap => {
                self.taken += 1;
                number.store(self.taken, Ordering::Release);
                Some(self.taken)
            }
            0 => None,
            known if known <= cap => Some(known),
            _ => {
                // Another layer with a larger cap counted this turn, so the count is taken back.
                self.taken -= 1;
                number.store(0, Ordering::Release);
                None
            }
        }
    }
}
