//! The count of a run's turns, and the cap on them.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::PauseAtCap;

/// The number of turns that a run has taken, and the state of its last call.
///
/// The run keeps the value behind a lock, so that concurrent calls cannot exceed the cap.
#[derive(Debug, Default)]
pub(crate) struct TurnCount {
    pub(in crate::run) taken: u32,
    pub(in crate::run) last: LastCall,
    /// The cap of the layer that counted last; 0 if no layer caps them.
    pub(in crate::run) cap: u32,
    /// The cap of which a notice said that the run is near it; 0 before the first.
    near: u32,
    /// How many turns the program has added to any cap.
    pub(in crate::run) added: u32,
}

/// The state of the one call that a run may make after its cap on turns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LastCall {
    /// The run was not held open: no turn beyond its cap was refused, or it may make no last call.
    #[default]
    Ahead,
    /// The run is held open for its last call.
    Held,
    /// The last call was opened, or the run no longer waits for it.
    Over,
}

/// The cap on turns that one layer sets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TurnLimit {
    pub(crate) turns: u32,
    /// The time for which the run stays open for its last call; `None` if it may make none.
    pub(crate) final_call: Option<Duration>,
    /// How the run waits at its cap; `None` if it ends there.
    pub(crate) pause: Option<PauseAtCap>,
    /// The part of the cap at which to send a notice.
    pub(crate) near_at: Option<f64>,
}

impl TurnLimit {
    /// The limit of a layer that counts turns and caps none.
    pub(crate) const NONE: Self = Self {
        turns: u32::MAX,
        final_call: None,
        pause: None,
        near_at: None,
    };
}

impl TurnCount {
    /// The turns that the run may take under a layer's `cap`, with those that were added.
    #[inline]
    pub(in crate::run) const fn most(&self, cap: u32) -> u32 {
        if cap == TurnLimit::NONE.turns {
            return cap;
        }
        let most = cap.saturating_add(self.added);
        if most == TurnLimit::NONE.turns {
            most - 1
        } else {
            most
        }
    }

    /// Whether a run that has taken `taken` in all has reached this part of its `cap`, and no notice
    /// said so of that cap.
    pub(in crate::run) fn claim_near(&mut self, cap: u32, part: f64, taken: u32) -> bool {
        let is_near = f64::from(taken) >= part * f64::from(cap);
        let is_new = is_near && self.near != cap;
        if is_new {
            self.near = cap;
        }
        is_new
    }

    /// Adds `turns` to the cap, for a run that has taken `taken` in all. A run that has reached its cap
    /// may take so many more from now on.
    pub(in crate::run) const fn extend(&mut self, turns: u32, taken: u32) {
        let over = match self.cap {
            0 => 0,
            cap => taken.saturating_sub(self.most(cap)),
        };
        self.added = self.added.saturating_add(turns).saturating_add(over);
    }

    /// Counts a turn of the run, unless `number` shows that the turn was counted before.
    ///
    /// Returns whether the turn's number is within the cap; else the request is not a turn.
    pub(in crate::run) fn take(&mut self, cap: u32, number: &AtomicU32) -> bool {
        match number.load(Ordering::Acquire) {
            // Without a cap the count stops at the greatest number, and refuses nothing.
            0 if self.taken < cap || cap == TurnLimit::NONE.turns => {
                self.taken = self.taken.saturating_add(1);
                number.store(self.taken, Ordering::Release);
                true
            }
            0 => false,
            known if known <= cap => true,
            _ => {
                // A layer with a larger cap counted this turn, so the count is taken back.
                self.taken -= 1;
                number.store(0, Ordering::Release);
                false
            }
        }
    }
}
