//! The reports of shadow mode: which limits would have ended a node, and which of them were wrong.

use std::{
    sync::atomic::{Ordering, fence},
    time::Duration,
};

use crate::run::{
    limits::ShadowHit,
    reason::{ReasonClass, TerminalReason},
    report::RunNotice,
    state::NodeState,
    tree::{End, Node, NodeKind},
};

impl Node<NodeState> {
    /// Reports a limit in shadow mode that has passed on this node.
    ///
    /// The report is sent once per node, reason and limit. If the node completes later, a second
    /// notice says that the limit was wrong.
    pub(crate) fn would_end(&self, reason: &TerminalReason, limit: Option<Duration>) {
        if self.nearest_end().is_some() {
            return;
        }
        let hit = ShadowHit {
            node: self.number(),
            reason: reason.clone(),
            limit,
            after: self.now().saturating_sub(self.opened()),
        };
        if !self.run_state().rare().shadows.note(hit) {
            return;
        }
        tracing::info!(
            target: "tower_agent",
            run = %self.run_id(),
            kind = self.kind().as_str(),
            reason = reason.as_str(),
            limit = limit.map(tracing::field::debug),
            "would have ended"
        );
        let notice = RunNotice::WouldHaveEnded {
            reason: reason.clone(),
            limit,
        };
        self.nearest_run().publish(&notice, false);
        // This fence pairs with the one in `judge_shadows`: this thread sees the end, or the ending
        // thread sees the note.
        fence(Ordering::SeqCst);
        if self.own_end().is_some() {
            // The end of the node may have been published already, and no notice may follow it.
            let _too_late = self.run_state().rare().shadows.take(self.number());
        }
    }

    /// Removes the notes of shadow mode about this node, which has ended. If the node completed by
    /// itself, each note is reported as a false positive.
    pub(in crate::run) fn judge_shadows(&self, end: &End) {
        fence(Ordering::SeqCst);
        let run = self.nearest_run();
        let Some(rare) = run.payload.rare_if_any() else {
            return;
        };
        let hits = rare.shadows.take(self.number());
        if end.origin != self.number() || end.reason.class() != ReasonClass::Success {
            return;
        }
        let took = end.lasted();
        for hit in hits {
            let (reason, limit, after) = (hit.reason, hit.limit, hit.after);
            tracing::warn!(
                target: "tower_agent",
                run = %self.run_id(),
                kind = self.kind().as_str(),
                reason = reason.as_str(),
                limit = limit.map(tracing::field::debug),
                ?after,
                ?took,
                "false positive: a limit would have ended a node that completed"
            );
            let notice = RunNotice::FalsePositive {
                reason,
                after,
                took,
            };
            // The run's own end is stored already; its notices come before the end is published.
            run.publish(&notice, self.kind() == NodeKind::Run);
        }
    }
}
