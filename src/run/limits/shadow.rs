//! Limits that end nothing: what they would have ended, and whether it succeeded.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::run::reason::TerminalReason;

/// How often limits in shadow mode would have ended something, and how often they
/// would have been wrong: [`RunRegistry::shadow`](crate::registry::RunRegistry::shadow).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShadowReport {
    /// How often a limit would have ended a run, call, attempt or tool.
    pub would_have_ended: u64,
    /// How many of those completed later on: the false positives.
    pub completed: u64,
}

/// What would have ended below a run, and goes on.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    /// How many there are, so that the end of a node takes no lock for none.
    count: AtomicUsize,
    noted: Mutex<Vec<Noted>>,
}

#[derive(Debug)]
pub(crate) struct Noted {
    /// The node's number.
    pub(in crate::run) node: u64,
    pub(in crate::run) reason: TerminalReason,
    pub(in crate::run) limit: Option<Duration>,
    /// How long the node had lasted.
    pub(in crate::run) after: Duration,
}

impl Shadows {
    pub(in crate::run) fn lock(&self) -> MutexGuard<'_, Vec<Noted>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers whether it was not noted before.
    pub(in crate::run) fn note(&self, noted: Noted) -> bool {
        let mut all = self.lock();
        let same = |other: &Noted| {
            (other.node, &other.reason, other.limit) == (noted.node, &noted.reason, noted.limit)
        };
        if all.iter().any(same) {
            return false;
        }
        all.push(noted);
        self.count.store(all.len(), Ordering::SeqCst);
        true
    }

    /// Those of one node, which is over.
    pub(in crate::run) fn take(&self, node: u64) -> Vec<Noted> {
        if self.count.load(Ordering::SeqCst) == 0 {
            return Vec::new();
        }
        let mut all = self.lock();
        let (taken, left) = std::mem::take(&mut *all)
            .into_iter()
            .partition(|noted| noted.node == node);
        *all = left;
        self.count.store(all.len(), Ordering::SeqCst);
        taken
    }
}
