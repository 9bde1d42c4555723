//! How a node that somebody worked on ends, and what its failure counts for.

use super::Run;
use crate::run::{
    kinds::{NodeKind, ResetOn, Step, StepKind},
    limits::{ErrorAllowance, ErrorCounts, ErrorKey},
    reason::{ReasonClass, TerminalReason},
    state::{Failing, NodeState},
    tree::{End, Node},
};

impl Run {
    /// The opener's word, once its work was dropped: stored only if nothing
    /// else was, and taken over by a run that was opened for this one call. A
    /// run that was given a name since it was opened goes on.
    pub(crate) fn settle(&self, reason: TerminalReason) {
        // Before it leaves: an unused run completes when the last has left it.
        if !self.node().payload.is_refused() {
            self.nearest().payload.set_used();
        }
        let now = self.now();
        let shared = self.kind() == NodeKind::Run && !self.node().payload.is_single();
        // The caller is gone, and who works on goes on: the last one ends it. A
        // shutdown lets it finish, for a caller who is there.
        let closed_for = self.node().closing().filter(|_| self.node().is_draining());
        let gone = closed_for.is_some_and(|reason| *reason != TerminalReason::Shutdown);
        if shared || gone {
            if gone && self.kind() == NodeKind::Call {
                self.count_left();
            }
            self.node().leave(now);
            return;
        }
        // Whoever judged the answer knows more than its status tells.
        let judged = |failing: Failing| failing.reason;
        let whole = self.kind() == NodeKind::Attempt && reason == TerminalReason::Completed;
        let reason = match &reason {
            TerminalReason::Failed(_) => self.failing().and_then(judged).unwrap_or(reason),
            TerminalReason::Completed if whole => self.failing().and_then(judged).unwrap_or(reason),
            _ => reason,
        };
        drop(self.node().settle(reason, now));
        if let Some(parent) = self.node().parent() {
            let end = self.node().nearest_end();
            // What ended by itself was a step of what goes on above; what ended
            // because that ended was none.
            if end.is_some_and(|end| end.origin == self.node().number()) {
                parent.record(ResetOn::Step, now);
                self.record_child_done(parent.nearest_run());
            }
            // How a whole answer ended, a layer that opened the run sees itself,
            // once it has handed it on.
            let whole = |end: &End| {
                let class = end.reason.class();
                matches!(class, ReasonClass::Success | ReasonClass::Failure)
            };
            let last_word = |end: &&End| !(parent.payload.is_owned() && whole(end));
            if self.node().payload.is_sole() && parent.payload.is_single() {
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

    /// Tells the run above that this is done. That a try served says its call.
    fn record_child_done(&self, run: &Node<NodeState>) {
        let reason = self.node().own_end().map(|end| end.reason.class());
        let whole = reason == Some(ReasonClass::Success);
        let failed = reason == Some(ReasonClass::Failure);
        let other = |detail| Step::new(StepKind::StateChange).detail(detail);
        run.payload.record_child_done(match self.kind() {
            NodeKind::Attempt if whole => return,
            NodeKind::Call if whole => Step::new(StepKind::LlmResponse),
            NodeKind::Tool if whole || failed => Step::new(StepKind::ToolComplete),
            NodeKind::Attempt => other("an attempt failed"),
            NodeKind::Call => other("a call failed"),
            NodeKind::Tool => other("a tool was stopped"),
            NodeKind::Run => other("a sub-agent ended"),
        });
    }

    /// A call that failed, after all its tries, is an error of its run. The run
    /// ends only now, with the answer handed on: what hit the limit is still
    /// answered as it was.
    fn count(&self) {
        if self.nearest().payload.is_single() {
            // It is over with its one call, and as that is.
            return;
        }
        self.count_success();
        let own = self.node().own_end();
        let Some(end) = own.filter(|end| end.origin == self.node().number()) else {
            return;
        };
        let failing = self.failing();
        let judged = failing.as_ref().and_then(|failing| failing.reason.as_ref());
        // Ended otherwise, by a disconnect for one, it is nobody's failure; unless
        // its failed answer was handed on already, whatever becomes of that.
        let cut = end.reason.class() == ReasonClass::Cancelled && judged.is_some();
        if !is_failure(&end.reason) && judged != Some(&end.reason) && !cut {
            return;
        }
        match failing {
            None => self.run().fail(|| ErrorKey::new("", end.reason.as_str())),
            Some(failing) => self.count_failing(failing),
        }
    }

    /// The caller left, and somebody reads on: a failed answer that was handed on
    /// already is an error of its run, whatever is read of the rest.
    fn count_left(&self) {
        let judged = self.failing().filter(|failing| failing.reason.is_some());
        if let Some(failing) = judged.filter(|_| !self.is_single()) {
            self.count_failing(failing);
        }
    }

    fn count_failing(&self, failing: Failing) {
        if failing.unasked {
            return;
        }
        match failing.counted {
            None => self.run().fail(|| failing.key),
            Some(ErrorAllowance::RunSpent | ErrorAllowance::BothSpent) => {
                self.run().end(TerminalReason::RunErrors);
            }
            // A key that was spent inside a call is the end of that call alone.
            Some(ErrorAllowance::Within | ErrorAllowance::KeySpent | ErrorAllowance::RowSpent) => {
                let errors = self.nearest().payload.errors();
                if errors.is_some_and(ErrorCounts::reached) {
                    self.run().end(TerminalReason::ConsecutiveErrors);
                }
            }
        }
    }

    /// If this call or tool did what it was asked for, no errors of its run are in a
    /// row any more.
    fn count_success(&self) {
        let own = |end: &&End| end.origin == self.node().number();
        let end = self.node().own_end().filter(own);
        if end.is_some_and(|end| end.reason == TerminalReason::Completed) {
            if let Some(errors) = self.nearest().payload.errors() {
                errors.succeeded();
            }
        }
    }

    /// Counts an error of this run, and ends it if that was one too many.
    pub(crate) fn fail(&self, key: impl FnOnce() -> ErrorKey) {
        let run = self.nearest();
        let Some(errors) = run.payload.errors() else {
            run.payload.harness().count_error();
            return;
        };
        let reason = match errors.count(key()) {
            ErrorAllowance::Within => return,
            ErrorAllowance::KeySpent | ErrorAllowance::BothSpent => TerminalReason::RetryBudget,
            ErrorAllowance::RunSpent => TerminalReason::RunErrors,
            ErrorAllowance::RowSpent => TerminalReason::ConsecutiveErrors,
        };
        self.run().end(reason);
    }

    /// Counts an error of the nearest run, and ends nothing.
    pub(crate) fn count_error(&self, key: ErrorKey) -> ErrorAllowance {
        let run = self.nearest();
        let Some(errors) = run.payload.errors() else {
            run.payload.harness().count_error();
            return ErrorAllowance::Within;
        };
        errors.count_attempt(key)
    }

    /// Limits how many errors the nearest run may make; a limit that is there only
    /// tightens.
    pub(crate) fn tighten_errors(
        &self,
        per_key: Option<u32>,
        per_run: Option<u32>,
        in_a_row: Option<u32>,
    ) {
        let run = &self.nearest().payload;
        run.limit_errors(per_key, per_run, in_a_row);
    }

    /// Whether the nearest run is over with its one call, however that ends.
    pub(crate) fn is_single(&self) -> bool {
        self.nearest().payload.is_single()
    }

    /// What to call the failure of this node, should it fail.
    pub(crate) fn fail_as(&self, failing: Failing) {
        self.node().payload.fail_as(failing);
    }

    pub(crate) fn failing(&self) -> Option<Failing> {
        self.node().payload.failing()
    }

    /// Whether the run's errors are limited.
    pub(crate) fn counts_errors(&self) -> bool {
        self.nearest().payload.errors().is_some()
    }

    pub(crate) fn forget_failing(&self) {
        self.node().payload.forget_failing();
    }
}

fn is_failure(reason: &TerminalReason) -> bool {
    matches!(reason.class(), ReasonClass::Failure | ReasonClass::Timeout)
}
