//! Settles a node after its work, and counts its failure against the run.
//!
//! The end hook of a node's state applies the effects of an end to the rest of the run.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use super::Run;
use crate::{
    lock::Lock,
    run::{
        limits::{ErrorAllowance, ErrorCounts, ErrorKey},
        reason::{ReasonClass, TerminalReason},
        report::CallSummary,
        state::{CallState, Failing, NodeState, RunState, Settlement},
        step::{Step, StepKind},
        time_limits::ResetOn,
        tree::{End, EndHook, Node, NodeKind, PendingWakes},
    },
};

/// The descriptions of steps for children that did not complete: an attempt, a call, a tool, a
/// sub-agent. The texts are allocated once, so that the end of a node need not allocate them.
static NOT_COMPLETED: LazyLock<[Arc<str>; 4]> = LazyLock::new(|| {
    let texts = [
        "an attempt failed",
        "a call failed",
        "a tool was stopped",
        "a sub-agent ended",
    ];
    texts.map(Arc::from)
});

/// The step of a run with a child that did not complete.
fn not_completed(child: NodeKind) -> Step {
    let [attempt, call, tool, sub_agent] = &*NOT_COMPLETED;
    let text = match child {
        NodeKind::Attempt => attempt,
        NodeKind::Call => call,
        NodeKind::Tool => tool,
        NodeKind::Run => sub_agent,
    };
    Step::new(StepKind::StateChange).detail(Arc::clone(text))
}

impl Run {
    /// Settles this node with `reason`, after its opener has dropped the node's work.
    ///
    /// The reason is stored only if the node has no end yet. A layer's classification of the answer
    /// replaces a failure, and the completion of an attempt. A run that was opened for this one
    /// call ends as the call does. Two kinds of node only lose this work, and `reason` is not
    /// stored: a run that several calls share or that was given an id since, and a node that was
    /// closed for another reason than a shutdown.
    pub(crate) fn settle(&self, reason: TerminalReason) {
        // The run is marked as used before this work is uncounted: an unused run completes as soon
        // as it has no work.
        if !self.node().payload.is_refused() {
            self.run_state().set_used();
        }
        let now = self.now();
        let shared =
            self.kind() == NodeKind::Run && !self.node().payload.settlement.ends_with_call();
        // The node was closed, for example because its caller left: its last piece of work ends it
        // with the reason of the closing. In a shutdown the caller still waits for the answer, so
        // `reason` is stored.
        let closed_for = self
            .node()
            .refusal()
            .filter(|_| self.node().is_closed_itself());
        let gone = closed_for.is_some_and(|reason| *reason != TerminalReason::Shutdown);
        if shared || gone {
            if gone && self.kind() == NodeKind::Call {
                self.count_abandoned();
            }
            self.node().leave(now);
            return;
        }
        // A layer's classification of the answer is more exact than the reason from the status.
        let classified = |failing: Failing| failing.reason;
        let whole = self.kind() == NodeKind::Attempt && reason == TerminalReason::Completed;
        let reason = match &reason {
            TerminalReason::Failed(_) => self.failing().and_then(classified).unwrap_or(reason),
            TerminalReason::Completed if whole => {
                self.failing().and_then(classified).unwrap_or(reason)
            }
            _ => reason,
        };
        drop(self.node().settle(reason, now));
        if let Some(parent) = self.node().parent() {
            let end = self.node().nearest_end();
            // A child that ended by itself was a step of its parent. A child that inherited its
            // parent's end was none.
            if end.is_some_and(|end| end.origin == self.node().number()) {
                parent.record(ResetOn::Step, now);
                self.record_child_done(parent.nearest_run());
            }
            // If the answer was not cut, the layer that opened the run settles the run itself,
            // after it has returned the answer.
            let whole = |end: &End| {
                let class = end.reason.class();
                matches!(class, ReasonClass::Success | ReasonClass::Failure)
            };
            let last_word =
                |end: &&End| !(parent.payload.settlement.is(Settlement::Layer) && whole(end));
            if self.node().payload.settlement.is(Settlement::OnlyCall)
                && parent.payload.settlement.ends_with_call()
            {
                if let Some(end) = end.filter(last_word) {
                    parent.settle_as(end, now);
                }
            }
        }
        self.node().leave(now);
        match self.kind() {
            NodeKind::Call => self.count(),
            NodeKind::Tool => self.count_success(),
            NodeKind::Run | NodeKind::Attempt => {}
        }
    }

    /// Records on `run` that this child of it is done. A completed attempt is not recorded: its
    /// call will be.
    fn record_child_done(&self, run: &Node<NodeState>) {
        let reason = self.node().own_end().map(|end| end.reason.class());
        let whole = reason == Some(ReasonClass::Success);
        let failed = reason == Some(ReasonClass::Failure);
        run.run_state().record_child_done(match self.kind() {
            NodeKind::Attempt if whole => return,
            NodeKind::Call if whole => Step::new(StepKind::LlmResponse),
            NodeKind::Tool if whole || failed => Step::new(StepKind::ToolComplete),
            kind => not_completed(kind),
        });
    }

    /// Counts a call that failed after all its attempts as an error of its run; a call that
    /// completed resets the run's errors in a row. The end of a run of one call counts nothing.
    ///
    /// The run ends only now, after the caller got the answer: so the answer that hit the limit
    /// still reaches the caller.
    fn count(&self) {
        if self.nearest().payload.settlement.ends_with_call() {
            // The run ends with its one call, by the same reason.
            return;
        }
        self.count_success();
        let own = self.node().own_end();
        let Some(end) = own.filter(|end| end.origin == self.node().number()) else {
            return;
        };
        let failing = self.failing();
        let classified = failing.as_ref().and_then(|failing| failing.reason.as_ref());
        // A call that ended otherwise is no failure; but a call that was cancelled, by a disconnect
        // for example, is one if the layers had returned a failed answer before.
        let cut = end.reason.class() == ReasonClass::Cancelled && classified.is_some();
        if !is_failure(&end.reason) && classified != Some(&end.reason) && !cut {
            return;
        }
        match failing {
            None => {
                let subject = self.call_node().payload.last_target();
                let key =
                    ErrorKey::new(subject.as_deref().unwrap_or_default(), end.reason.as_str());
                self.run().fail(key);
            }
            Some(failing) => self.count_failing(failing),
        }
    }

    /// Counts a failed answer as an error of the run, though the caller left the call.
    ///
    /// The layers have returned the failed answer already, so it is an error whatever the rest of
    /// the body brings.
    fn count_abandoned(&self) {
        let classified = self.failing().filter(|failing| failing.reason.is_some());
        if let Some(failing) = classified.filter(|_| !self.is_single()) {
            self.count_failing(failing);
        }
    }

    fn count_failing(&self, failing: Failing) {
        if failing.unasked {
            return;
        }
        match failing.counted {
            None => self.run().fail(failing.key),
            Some(ErrorAllowance::RunSpent | ErrorAllowance::BothSpent) => {
                self.run().end(TerminalReason::RunErrors);
            }
            // A key that was spent inside a call ends that call alone.
            Some(ErrorAllowance::Within | ErrorAllowance::KeySpent | ErrorAllowance::RowSpent) => {
                let errors = self.run_state().errors_if_any();
                if errors.is_some_and(ErrorCounts::count_in_row) {
                    self.run().end(TerminalReason::ConsecutiveErrors);
                }
            }
        }
    }

    /// Resets the number of the run's errors in a row if this call or tool completed.
    fn count_success(&self) {
        let own = |end: &&End| end.origin == self.node().number();
        let end = self.node().own_end().filter(own);
        if end.is_some_and(|end| end.reason == TerminalReason::Completed) {
            if let Some(errors) = self.run_state().errors_if_any() {
                errors.succeeded();
            }
        }
    }

    /// Counts an error of this run, and ends the run if that spends a limit on errors.
    pub(crate) fn fail(&self, key: ErrorKey) {
        let reason = match self.run_state().errors().count(key) {
            ErrorAllowance::Within => return,
            ErrorAllowance::KeySpent | ErrorAllowance::BothSpent => TerminalReason::RetryBudget,
            ErrorAllowance::RunSpent => TerminalReason::RunErrors,
            ErrorAllowance::RowSpent => TerminalReason::ConsecutiveErrors,
        };
        self.run().end(reason);
    }

    /// Counts a failed attempt as an error of the nearest run, without ending the run. Returns
    /// which of the limits per key and per run it exceeds.
    pub(crate) fn count_error(&self, key: ErrorKey) -> ErrorAllowance {
        self.run_state().errors().count_attempt(key)
    }

    /// Limits the errors of the nearest run; new limits only tighten those that are set already.
    pub(crate) fn tighten_errors(
        &self,
        per_key: Option<u32>,
        per_run: Option<u32>,
        in_a_row: Option<u32>,
    ) {
        if per_key.or(per_run).or(in_a_row).is_some() {
            let errors = self.run_state().errors();
            errors.tighten(per_key, per_run);
            errors.tighten_in_a_row(in_a_row);
        }
    }

    /// Whether the nearest run ends with its one call.
    pub(crate) fn is_single(&self) -> bool {
        self.nearest().payload.settlement.ends_with_call()
    }

    /// Sets the failure as which this node counts if it fails; `None` clears it.
    pub(crate) fn fail_as(&self, failing: impl Into<Option<Failing>>) {
        self.node().payload.fail_as(failing.into());
    }

    pub(crate) fn failing(&self) -> Option<Failing> {
        self.node().payload.failing()
    }
}

fn is_failure(reason: &TerminalReason) -> bool {
    matches!(reason.class(), ReasonClass::Failure | ReasonClass::Timeout)
}

/// The maximum number of window lengths for which a process logs `warn_of_short_window`.
const MAX_WARNED: usize = 16;

impl Node<NodeState> {
    /// Warns of a step window that ended this node, and is no longer than an attempt's below it.
    ///
    /// With such a window no attempt can follow a silent one. The warning is logged once per
    /// length.
    #[cold]
    fn warn_of_short_window(&self, end: &End) {
        static WARNED: Lock<Vec<Duration>> = Lock::new(Vec::new());
        let Some(limit) = end.limit().filter(|limit| self.has_attempt_window(*limit)) else {
            return;
        };
        {
            let mut warned = WARNED.lock();
            if warned.len() >= MAX_WARNED || warned.contains(&limit) {
                return;
            }
            warned.push(limit);
        }
        tracing::warn!(
            target: "tower_agent",
            run = %self.run_id(),
            ended = end.kind.as_str(),
            ?limit,
            "no retry follows: the step window outside of it is too short"
        );
    }
}

impl EndHook for NodeState {
    fn ended(&self, node: &Node<Self>, end: &End, later: &mut PendingWakes<Self>) {
        node.judge_shadows(end);
        if end.reason == TerminalReason::StepTimeout && end.origin == node.number() {
            node.warn_of_short_window(end);
        }
        if node.kind() == NodeKind::Call {
            *node.run_state().last_end.lock() = Some(end.reason.clone());
        }
        // If a run of one call is cut, the run ends together with the call: a reader that does not
        // read would delay the settlement of the call. No layer settles a draining call any more.
        let cut = node.is_closed_itself()
            || !matches!(
                end.reason.class(),
                ReasonClass::Success | ReasonClass::Failure
            );
        if let (true, true, Some(run)) =
            (cut, self.settlement.is(Settlement::OnlyCall), node.parent())
        {
            if run.payload.settlement.ends_with_call() {
                run.settle_with(end, end.at(), later);
            }
        }
        if node.is_closed_itself() && node.is_idle() {
            // The node has no work any more, and its waiters wake after the hooks.
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
            #[cfg(feature = "metrics")]
            node.record_run(end);
            node.log_run(end, later);
            node.close_idle_span(end, later);
            node.publish_end();
            node.release(end.at());
            node.stop_sub_agents(end, later);
        }
    }

    fn settled(&self, node: &Node<Self>) {
        if let Some(hooks) = self.call().and_then(CallState::hooks_if_any) {
            CallSummary::report(node, hooks);
        }
    }

    fn woken(&self, node: &Node<Self>) {
        node.log_settled();
        node.close_span();
    }

    fn idle(&self, node: &Node<Self>) {
        if self.run().is_some_and(RunState::is_unused) {
            if let Some(registration) = self.registration() {
                registration.refused(node);
            }
        }
    }
}
