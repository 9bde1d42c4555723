//! Counts failed calls and attempts as errors of their run, which may end the run.

use crate::run::{
    limits::{ErrorAllowance, ErrorCounts, ErrorKey},
    reason::{ReasonClass, TerminalReason},
    state::{Failing, NodeState},
    tree::{End, Node},
};

/// The errors of the run at or above a node, and the failure as which that node counts.
#[derive(Clone, Copy)]
pub(crate) struct RunErrors<'a>(&'a Node<NodeState>);

impl<'a> RunErrors<'a> {
    #[inline]
    pub(super) const fn of(node: &'a Node<NodeState>) -> Self {
        Self(node)
    }

    /// Counts a call that failed after all its attempts as an error of its run; a call that
    /// completed resets the run's errors in a row. The end of a run of one call counts nothing.
    ///
    /// The run ends by a limit on errors only after the call has settled: so this end does not cut
    /// the answer that reached the limit.
    pub(super) fn count_call(self) {
        if self.0.is_single() {
            // The run ends with its one call, by the same reason.
            return;
        }
        self.count_success();
        let own = self.0.own_end();
        let Some(end) = own.filter(|end| end.origin == self.0.number()) else {
            return;
        };
        let failing = self.failing();
        let classified = failing.as_ref().and_then(|failing| failing.reason.as_ref());
        // A call counts as failed if it ended by a failure or a timeout, or by the reason as which
        // a layer classified its answer. A call that was cancelled, by a disconnect for example,
        // counts if the layers had returned a failed answer before.
        let cut = end.reason.class() == ReasonClass::Cancelled && classified.is_some();
        if !is_failure(&end.reason) && classified != Some(&end.reason) && !cut {
            return;
        }
        match failing {
            None => {
                let subject = self.0.call_node().payload.last_target();
                let key =
                    ErrorKey::new(subject.as_deref().unwrap_or_default(), end.reason.as_str());
                self.fail(key);
            }
            Some(failing) => self.count_failing(failing),
        }
    }

    /// Counts the failed answer of a closed call as an error of a run of several calls.
    ///
    /// The layers have returned the failed answer already, so it is an error whatever the rest of
    /// the body brings.
    pub(super) fn count_abandoned(self) {
        let classified = self.failing().filter(|failing| failing.reason.is_some());
        if let Some(failing) = classified.filter(|_| !self.0.is_single()) {
            self.count_failing(failing);
        }
    }

    fn count_failing(self, failing: Failing) {
        if failing.unasked {
            return;
        }
        match failing.counted {
            None => self.fail(failing.key),
            Some(ErrorAllowance::RunSpent | ErrorAllowance::BothSpent) => {
                self.end_run(TerminalReason::RunErrors);
            }
            // A key that was spent inside a call ends that call alone.
            Some(ErrorAllowance::Within | ErrorAllowance::KeySpent | ErrorAllowance::RowSpent) => {
                let errors = self.0.run_state().errors_if_any();
                if errors.is_some_and(ErrorCounts::count_in_row) {
                    self.end_run(TerminalReason::ConsecutiveErrors);
                }
            }
        }
    }

    /// Resets the number of the run's errors in a row if this call or tool completed.
    pub(super) fn count_success(self) {
        let own = |end: &&End| end.origin == self.0.number();
        let end = self.0.own_end().filter(own);
        if end.is_some_and(|end| end.reason == TerminalReason::Completed) {
            if let Some(errors) = self.0.run_state().errors_if_any() {
                errors.succeeded();
            }
        }
    }

    /// Counts an error of this run, and ends the run if that spends a limit on errors.
    pub(crate) fn fail(self, key: ErrorKey) {
        let reason = match self.0.run_state().errors().count(key) {
            ErrorAllowance::Within => return,
            ErrorAllowance::KeySpent | ErrorAllowance::BothSpent => TerminalReason::RetryBudget,
            ErrorAllowance::RunSpent => TerminalReason::RunErrors,
            ErrorAllowance::RowSpent => TerminalReason::ConsecutiveErrors,
        };
        self.end_run(reason);
    }

    fn end_run(self, reason: TerminalReason) {
        self.0.nearest_run().end_from_outside(reason);
    }

    /// Counts a failed attempt as an error of the nearest run, without ending the run. Returns
    /// which of the limits per key and per run it exceeds.
    pub(crate) fn count_attempt(self, key: ErrorKey) -> ErrorAllowance {
        self.0.run_state().errors().count_attempt(key)
    }

    /// Limits the errors of the nearest run; new limits only tighten those that are set already.
    pub(crate) fn tighten(self, per_key: Option<u32>, per_run: Option<u32>, in_a_row: Option<u32>) {
        if per_key.or(per_run).or(in_a_row).is_some() {
            let errors = self.0.run_state().errors();
            errors.tighten(per_key, per_run);
            errors.tighten_in_a_row(in_a_row);
        }
    }

    /// Sets the failure as which this node counts if it fails; `None` clears it.
    pub(crate) fn fail_as(self, failing: impl Into<Option<Failing>>) {
        self.0.payload.fail_as(failing.into());
    }

    /// The failure as which this node counts if it fails; `None` if none is set.
    pub(crate) fn failing(self) -> Option<Failing> {
        self.0.payload.failing()
    }

    /// The reason as which a layer classified the failure of this node; `None` if no layer did.
    pub(crate) fn classified(self) -> Option<TerminalReason> {
        self.failing()?.reason
    }
}

fn is_failure(reason: &TerminalReason) -> bool {
    matches!(reason.class(), ReasonClass::Failure | ReasonClass::Timeout)
}
