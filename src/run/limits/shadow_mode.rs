//! Limits in shadow mode: the nodes that they would have ended, and how often wrongly.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::{lock::Lock, run::reason::TerminalReason};

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
