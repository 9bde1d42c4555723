//! Limits that end nothing: what they would have ended, and whether it succeeded.

use std::{
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering, fence},
    },
    time::Duration,
};

use crate::run::{
    handle::Run,
    kinds::{NodeKind, Scope},
    reason::{ReasonClass, TerminalReason},
    report::Notice,
    state::Info,
    tree::{End, Node},
};

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
struct Noted {
    /// The node's number.
    node: u64,
    reason: TerminalReason,
    limit: Option<Duration>,
    /// How long the node had lasted.
    after: Duration,
}

impl Shadows {
    fn lock(&self) -> MutexGuard<'_, Vec<Noted>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers whether it was not noted before.
    fn note(&self, noted: Noted) -> bool {
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
    fn take(&self, node: u64) -> Vec<Noted> {
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

impl Run {
    /// A limit that ends nothing has passed on the node of this scope: told once for
    /// each, and once more if the node completes all the same.
    pub(crate) fn would_end(&self, scope: Scope, reason: &TerminalReason, limit: Option<Duration>) {
        let node = self.in_scope(scope);
        if node.nearest_end().is_some() {
            return;
        }
        let noted = Noted {
            node: node.number(),
            reason: reason.clone(),
            limit,
            after: self.now().saturating_sub(node.opened()),
        };
        if !node.nearest_run().payload.harness().shadows.note(noted) {
            return;
        }
        tracing::info!(
            target: "tower_agent",
            run = %node.run_id(),
            kind = node.kind().as_str(),
            reason = reason.as_str(),
            limit = limit.map(tracing::field::debug),
            "would have ended"
        );
        self.notify(&Notice::WouldHaveEnded {
            reason: reason.clone(),
            limit,
        });
        // Either the end is seen here, or whoever ends it sees the note.
        fence(Ordering::SeqCst);
        if node.own_end().is_some() {
            // Its end may have been told already, and nothing comes after that.
            let _too_late = node
                .nearest_run()
                .payload
                .harness()
                .shadows
                .take(node.number());
        }
    }
}

impl Node<Info> {
    /// The node is over: tells which limits in shadow mode would have been wrong.
    pub(in crate::run) fn judge_shadows(&self, end: &End) {
        fence(Ordering::SeqCst);
        let run = self.nearest_run();
        let Some(harness) = run.payload.harness_if_any() else {
            return;
        };
        let completed = end.origin == self.number() && end.reason.class() == ReasonClass::Success;
        for noted in harness.shadows.take(self.number()) {
            if !completed {
                continue;
            }
            let Noted {
                reason,
                limit,
                after,
                ..
            } = noted;
            let took = end.lasted;
            tracing::warn!(
                target: "tower_agent",
                run = %self.run_id(),
                kind = self.kind().as_str(),
                reason = reason.as_str(),
                limit = limit.map(tracing::field::debug),
                ?after,
                ?took,
                "false positive: it would have been ended, and completed"
            );
            let notice = Notice::FalsePositive {
                reason,
                after,
                took,
            };
            // Of its own end a run tells this last, before the end.
            run.publish(&notice, self.kind() == NodeKind::Run);
        }
    }
}
