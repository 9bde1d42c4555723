//! The effects of a node's end on the rest of its run.

use tokio::time::Instant;

use crate::run::{
    limit_kind::LimitHit,
    reason::TerminalReason,
    report::CallSummary,
    state::{CallState, NodeState, RunState, Settlement},
    tree::{End, EndHook, Node, NodeKind, PendingWakes},
};

impl EndHook for NodeState {
    fn on_own_clock(&self, end: &End, of: &Self) -> End {
        if self.tree == of.tree {
            return end.clone();
        }
        // A call of one tree may follow a run of another.
        let at = of.epoch.checked_add(end.at()).unwrap_or(of.epoch);
        end.moved_to(at.saturating_duration_since(self.epoch))
    }

    fn ended(&self, node: &Node<Self>, end: &End, later: &mut PendingWakes<Self>) {
        node.judge_shadows(end);
        if end.reason == TerminalReason::StepTimeout && end.origin == node.number() {
            node.warn_of_short_window(end);
        }
        if node.kind() == NodeKind::Call {
            *node.run_state().last_end.lock() = Some(end.reason.clone());
        }
        // A run of one call ends at once when its call is cut: a reader that does not read would
        // delay the settlement of the call. The run also ends at once with a call that was itself
        // closed.
        let cut = node.is_closed_itself() || end.reason.is_cut();
        if let (true, true, Some(run)) =
            (cut, self.settlement.is(Settlement::OnlyCall), node.parent())
        {
            if run.payload.settlement.ends_with_call() {
                run.settle_with(end, end.at(), later);
            }
        }
        if node.is_closed_itself() && node.is_idle() {
            // The node has no work any more, and its waiters wake after the hooks.
            self.call_hooks(node);
        }
        if node.kind() == NodeKind::Run {
            node.uncount();
            if let Some(rare) = self.rare_if_any() {
                rare.actions.forget();
            }
            if let Some(act) = node.record_end(end) {
                later.defer(act);
            }
            #[cfg(feature = "metrics")]
            node.record_run(end);
            node.log_run(end, later);
            node.close_idle_span(end, later);
            node.publish_end();
            node.release(end.at());
            node.forget_pauses(end.at());
            node.stop_sub_agents(end, later);
        }
    }

    fn has_begun(&self) -> bool {
        !self.settlement.is(Settlement::Unclaimed)
    }

    fn settled(&self, node: &Node<Self>) {
        self.call_hooks(node);
        node.log_settled();
        node.close_span();
    }

    fn completes_when_idle(&self, node: &Node<Self>) -> bool {
        let registration = self.registration();
        !self.settlement.ends_with_call()
            && registration.is_some_and(|registry| registry.completes_when_idle(node))
    }

    fn pause(&self) -> Option<(TerminalReason, LimitHit)> {
        self.pause_of_cap()
    }

    fn idle(&self, node: &Node<Self>) {
        if self.run().is_some_and(RunState::is_done) {
            node.forget_pauses(node.now());
            if let Some(registration) = self.registration() {
                let _later = registration.idle(node, Instant::now());
            }
        } else if self.run().is_some_and(RunState::is_unused) {
            if let Some(registration) = self.registration() {
                registration.refused(node);
            }
        }
    }
}

impl NodeState {
    /// Calls the program's hooks for the end of a call.
    fn call_hooks(&self, node: &Node<Self>) {
        if let Some(rare) = self.call().and_then(CallState::rare_if_any) {
            CallSummary::report(node, &rare.hooks);
        }
    }
}
