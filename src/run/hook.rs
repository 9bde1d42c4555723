//! Applies the effects of a node's end to the rest of the run.

use super::{
    kinds::NodeKind,
    reason::ReasonClass,
    report::CallSummary,
    state::{NodeState, RunState, Settlement},
    tree::{End, EndHook, Node, PendingWakes},
};

impl EndHook for NodeState {
    fn ended(&self, node: &Node<Self>, end: &End, later: &mut PendingWakes<Self>) {
        node.judge_shadows(end);
        // If a run of one call is cut, the run ends together with the call: a reader that does not
        // read would delay the settlement of the call. A draining call has no settling layer left.
        let cut = node.is_draining()
            || !matches!(
                end.reason.class(),
                ReasonClass::Success | ReasonClass::Failure
            );
        if let (true, true, Some(run)) =
            (cut, self.settlement.is(Settlement::OnlyCall), node.parent())
        {
            if run.payload.settlement.is_with_call() {
                run.settle_with(end, end.at, later);
            }
        }
        if node.is_draining() && node.is_idle() {
            // The node's last piece of work has left, and its waiters wake after the hooks.
            self.settled(node);
        }
        if node.kind() == NodeKind::Run {
            node.uncount();
            if let Some(features) = self.features_if_any() {
                features.actions.forget();
            }
            if let Some(act) = node.record_end(end) {
                later.defer(act);
            }
            node.log_run(end, later);
            node.publish_end();
            node.release(end.at);
            node.stop_sub_agents(end, later);
        }
    }

    fn settled(&self, node: &Node<Self>) {
        if let Some(hooks) = self.call().and_then(|call| call.hooks.get()) {
            CallSummary::report(node, hooks);
        }
    }

    fn woken(&self, node: &Node<Self>) {
        node.log_settled();
    }

    fn idle(&self, node: &Node<Self>) {
        if self.run().is_some_and(RunState::is_unused) {
            if let Some(registration) = self.registration() {
                registration.refused(node);
            }
        }
    }
}
