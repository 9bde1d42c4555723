//! Settles a node after its work.

use std::sync::{Arc, LazyLock};

use super::error_counts::RunErrors;
use crate::run::{
    limit_kind::LimitKind,
    reason::{ReasonClass, TerminalReason},
    state::{NodeState, Settlement},
    step::{ResetOn, Step, StepKind},
    tree::{End, Node, NodeKind},
};

/// The descriptions of steps for children that did not complete: an attempt, a call, a tool. The
/// texts are allocated once, so that the end of a node need not allocate them.
static NOT_COMPLETED: LazyLock<[Arc<str>; 3]> =
    LazyLock::new(|| ["an attempt failed", "a call failed", "a tool was stopped"].map(Arc::from));

impl Node<NodeState> {
    /// Settles this node with `reason`, after its opener has dropped the node's work.
    ///
    /// The reason is stored only if the node has no end yet. A layer's classification of the answer
    /// replaces a failure, and the completion of an attempt. A run for this one call ends as the
    /// call does, here or by the layer that opened it.
    ///
    /// The method uncounts the work, and does not store `reason`, if this node is a run that does
    /// not end with one call, or if this node was itself closed for another reason than a shutdown.
    /// The failed answer of such a closed call still counts as an error of a run of several calls.
    pub(super) fn settle_by_opener(&self, reason: TerminalReason) {
        // The run is marked as used before this work is uncounted: an unused run completes as soon
        // as it has no work.
        if !self.payload.is_refused() {
            self.run_state().set_used();
        }
        let (now, errors) = (self.now(), RunErrors::of(self));
        let shared = self.is_of_many();
        // A node that was itself closed, for example because its caller left, ends with the reason
        // of the closing once its last work is gone. In a shutdown the caller still waits for the
        // answer, so `reason` is stored.
        let closed_for = self.refusal().filter(|_| self.is_closed_itself());
        let gone = closed_for.is_some_and(|reason| *reason != TerminalReason::Shutdown);
        if shared || gone {
            if gone && self.kind() == NodeKind::Call {
                errors.count_abandoned();
            }
            self.end_work(now);
            return;
        }
        // A layer's classification of the answer is more exact than the reason from the status.
        let classified = match reason {
            TerminalReason::Failed(_) => self.payload.failing(),
            TerminalReason::Completed if self.kind() == NodeKind::Attempt => self.payload.failing(),
            _ => None,
        };
        let reason = classified.and_then(|it| it.reason).unwrap_or(reason);
        drop(self.settle(reason, now));
        if let Some(parent) = self.parent() {
            let end = self.nearest_end();
            // A child that ended by itself was a step of its parent. A child that inherited its
            // parent's end was none, and neither was one that a run at its cap or in a pause refused.
            let own = end.filter(|end| end.origin == self.number());
            let is_refused = |end: &End| {
                matches!(end.limit_kind, LimitKind::Turns(_)) || end.reason.is_run_paused()
            };
            if own.is_some_and(|end| !is_refused(end)) {
                parent.record(ResetOn::Step, now);
                self.record_child_done(parent.nearest_run());
            }
            // If the answer was not cut, the layer that opened the run settles the run itself,
            // after it has returned the answer.
            let of_run = &parent.payload.settlement;
            let last_word = |end: &&End| end.reason.is_cut() || !of_run.is(Settlement::Layer);
            let is_only_call = self.payload.settlement.is(Settlement::OnlyCall);
            if is_only_call && of_run.ends_with_call() {
                if let Some(end) = end.filter(last_word) {
                    parent.settle_as(end, now);
                }
            }
        }
        self.end_work(now);
        match self.kind() {
            NodeKind::Call => errors.count_call(),
            NodeKind::Tool => errors.count_success(),
            NodeKind::Run | NodeKind::Attempt => {}
        }
    }

    /// Records on `run` that this child of it is done. A completed attempt is not recorded: its
    /// call will be.
    fn record_child_done(&self, run: &Self) {
        let reason = self.own_end().map(|end| end.reason.class());
        let whole = reason == Some(ReasonClass::Success);
        let failed = reason == Some(ReasonClass::Failure);
        let [attempt, call, tool] = &*NOT_COMPLETED;
        let not_completed = |child| Step::new(StepKind::StateChange).detail(Arc::clone(child));
        run.run_state().record_child_done(match self.kind() {
            NodeKind::Attempt if whole => return,
            NodeKind::Call if whole => Step::new(StepKind::LlmResponse),
            NodeKind::Tool if whole || failed => Step::new(StepKind::ToolComplete),
            NodeKind::Attempt => not_completed(attempt),
            NodeKind::Call => not_completed(call),
            NodeKind::Tool => not_completed(tool),
            // A run below another node is never settled: it spans several calls.
            NodeKind::Run => return,
        });
    }
}
