//! The step windows of a run, for its tools.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::run::{
    step::ResetOn,
    tree::{NEVER, nanos},
};

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
