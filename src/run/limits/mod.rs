//! The limits of a run other than its deadlines, and the notices about its slow steps.
//!
//! This file has the small limits: turns, the windows of tools, and shadow mode.

mod actions;
mod error_counts;
mod progress_notices;
mod repetition;
mod tokens;

pub use self::{
    actions::{LoopPattern, LoopVerdict},
    error_counts::{ErrorAllowance, ErrorCounts, ErrorKey},
    progress_notices::ProgressNotices,
    tokens::{Price, TokenCaps, TokensSpent},
};

pub(crate) use self::{
    actions::{Action, Actions, EXCERPT, Effect, LoopLimits, ToolArguments},
    progress_notices::WorkingNotices,
    repetition::{RepeatDetector, Repetition},
    tokens::{RunTokenCaps, Spending, TokenAccount, TokenLedger, TokenMeter},
};

use std::{
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use super::{
    reason::TerminalReason,
    step::ResetOn,
    tree::{NEVER, nanos},
};
use crate::lock::Lock;

/// The number of turns that a run has taken, and the state of its last call.
///
/// The run keeps the value behind a lock, so that concurrent calls cannot exceed the cap.
#[derive(Debug, Default)]
pub(crate) struct TurnCount {
    pub(in crate::run) taken: u32,
    pub(in crate::run) last: LastCall,
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
    pub(crate) finaliser: Option<Duration>,
}

impl TurnCount {
    /// Counts a turn of the run, unless `number` shows that the turn was counted before.
    ///
    /// Returns whether the turn's number is within the cap; else the request is no turn.
    pub(in crate::run) fn take(&mut self, cap: u32, number: &AtomicU32) -> bool {
        match number.load(Ordering::Acquire) {
            0 if self.taken < cap => {
                self.taken += 1;
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

/// The step windows that layers measure on a run, for the tools of the run.
///
/// Each cell has the shortest window of one [`ResetOn`]: first of the windows that end the run,
/// then of those in shadow mode.
#[derive(Debug)]
pub(crate) struct RunWindows([AtomicU64; 6]);

impl Default for RunWindows {
    fn default() -> Self {
        Self([const { AtomicU64::new(NEVER) }; 6])
    }
}

impl RunWindows {
    const KINDS: [(ResetOn, bool); 6] = [
        (ResetOn::Step, false),
        (ResetOn::Content, false),
        (ResetOn::AnyByte, false),
        (ResetOn::Step, true),
        (ResetOn::Content, true),
        (ResetOn::AnyByte, true),
    ];

    /// Adds a layer's window; `observes` if the layer is in shadow mode.
    pub(crate) fn add(&self, window: Duration, resets_on: ResetOn, observes: bool) {
        let window = nanos(window);
        let cell = &self.0[resets_on as usize + 3 * usize::from(observes)];
        // The window is mostly there already: a load leaves the cache line shared.
        if window < cell.load(Ordering::Acquire) {
            cell.fetch_min(window, Ordering::AcqRel);
        }
    }

    /// The windows, each with the flag of shadow mode.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Duration, ResetOn, bool)> {
        let windows = self.0.iter().zip(Self::KINDS);
        windows.filter_map(|(cell, (resets_on, observes))| {
            let window = cell.load(Ordering::Acquire);
            (window != NEVER).then(|| (Duration::from_nanos(window), resets_on, observes))
        })
    }
}

/// The counts of shadow mode: how often limits would have ended a node, and how often wrongly.
///
/// [`RunRegistry::shadow`](crate::RunRegistry::shadow) returns the counts of a registry.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShadowReport {
    /// The number of times that a limit would have ended a run, call, attempt or tool.
    pub would_have_ended: u64,
    /// The number of those times after which the node completed: the false positives.
    pub completed: u64,
}

/// The notes of a run about limits in shadow mode: the nodes that they would have ended.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    /// The number of notes. At zero, the end of a node takes no lock.
    count: AtomicUsize,
    hits: Lock<Vec<ShadowHit>>,
}

#[derive(Debug)]
pub(crate) struct ShadowHit {
    /// The number of the node that the limit would have ended.
    pub(in crate::run) node: u64,
    pub(in crate::run) reason: TerminalReason,
    pub(in crate::run) limit: Option<Duration>,
    /// How long the node had lasted when it was noticed that the limit had passed.
    pub(in crate::run) after: Duration,
}

impl Shadows {
    /// Stores the note, unless one with the same node, reason and limit exists. Returns whether it
    /// was stored.
    pub(in crate::run) fn note(&self, hit: ShadowHit) -> bool {
        let mut all = self.hits.lock();
        let same = |other: &ShadowHit| {
            (other.node, &other.reason, other.limit) == (hit.node, &hit.reason, hit.limit)
        };
        if all.iter().any(same) {
            return false;
        }
        all.push(hit);
        self.count.store(all.len(), Ordering::SeqCst);
        true
    }

    /// Removes and returns the notes about one node, because the node is over.
    pub(in crate::run) fn take(&self, node: u64) -> Vec<ShadowHit> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut all = self.hits.lock();
        let (of_node, others) = std::mem::take(&mut *all)
            .into_iter()
            .partition(|hit| hit.node == node);
        *all = others;
        self.count.store(all.len(), Ordering::SeqCst);
        of_node
    }
}
