//! What is done when a node has ended.

use super::{
    kinds::NodeKind,
    reason::ReasonClass,
    report::CallSummary,
    state::NodeState,
    tree::{End, EndHook, Node, PendingWakes},
};

impl EndHook for NodeState {
    fn ended(&self, node: &Node<Self>, end: &End, later: &mut PendingWakes<Self>) {
        node.judge_shadows(end);
        // A run of one call that was cut is over with it, though a reader that
        // does not read keeps the call from being settled.
        // Nor is there anybody to settle one that drains.
        let cut = node.is_draining()
            || !matches!(
                end.reason.class(),
                ReasonClass::Success | ReasonClass::Failure
            );
        if let (true, true, Some(run)) = (cut, self.is_sole(), node.parent()) {
            if run.payload.is_single() {
                run.settle_with(end, end.at, later);
            }
        }
        if node.is_draining() && node.is_idle() {
            // The last one has left: whoever waits for that is woken next.
            self.settled(node);
        }
        if node.kind() == NodeKind::Run {
            node.uncount();
            if let Some(harness) = self.harness_if_any() {
                harness.actions.forget();
            }
            if let Some(act) = node.record_end(end) {
                later.act(act);
            }
            node.log_run(end, later);
            node.publish_end();
            node.release(end.at);
            node.ask_below(end, later);
        }
    }

    fn settled(&self, node: &Node<Self>) {
        if let Some(hooks) = self.hooks.get() {
            CallSummary::report(node, hooks);
        }
    }

    fn woken(&self, node: &Node<Self>) {
        node.log_left();
    }

    fn idle(&self, node: &Node<Self>) {
        if self.is_unused() {
            if let Some(registration) = self.registration() {
                registration.refused(node);
            }
        }
    }
}
