//! The turns of a run, and what happens when it has used them up.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// How many turns a run has had. A lock, so that whatever calls come at the same
/// time no more are admitted than the cap says.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<TurnCount>);

#[derive(Debug, Default)]
pub(in crate::run) struct TurnCount {
    pub(in crate::run) taken: u32,
    pub(in crate::run) last: LastCall,
}

/// The one call that a run may make after its cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LastCall {
    /// The cap was not reached.
    #[default]
    Ahead,
    /// The run is held open for it.
    Held,
    /// It was made, or can be made no more.
    Over,
}

/// How many turns a run may have, as one layer says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnLimit {
    pub(crate) turns: u32,
    /// How long the run is held open for its last call; none if it may not make
    /// one.
    pub(crate) finaliser: Option<Duration>,
}

impl Turns {
    pub(in crate::run) fn lock(&self) -> MutexGuard<'_, TurnCount> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a turn, unless `number` says that it was counted before. Answers its
    /// number; `None` if that is beyond the cap, and then it is no turn.
    pub(in crate::run) fn take(&self, cap: u32, number: &AtomicU32) -> Option<u32> {
        let mut counted = self.lock();
        match number.load(Ordering::Acquire) {
            0 if counted.taken < cap => {
                counted.taken += 1;
                number.store(counted.taken, Ordering::Release);
                Some(counted.taken)
            }
            0 => None,
            known if known <= cap => Some(known),
            _ => {
                // Another layer, whose cap is larger, counted it.
                counted.taken -= 1;
                number.store(0, Ordering::Release);
                None
            }
        }
    }
}
