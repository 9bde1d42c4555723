//! Counts failed calls and attempts as errors of their run, which may end the run.

use super::Run;
use crate::run::{
    limits::{ErrorAllowance, ErrorCounts, ErrorKey},
    reason::{ReasonClass, TerminalReason},
    state::Failing,
    tree::End,
};

impl Run {
    /// Counts a call that failed after all its attempts as an error of its run; a call that
    /// completed resets the run's errors in a row. The end of a run of one call counts nothing.
    ///
    /// The run ends by a limit on errors only after the call has settled: so this end does not cut
    /// the answer that reached the limit.
    pub(super) fn count_call(&self) {
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
        // A call counts as failed if it ended by a failure or a timeout, or by the reason as which
        // a layer classified its answer. A call that was cancelled, by a disconnect for example,
        // counts if the layers had returned a failed answer before.
        let cut = end.reason.class() == ReasonClass::Cancelled && classified.is_some();
        if !is_failure(&end.reason) && classified != Some(&end.reason) && !cut {
            return;
        }
        match failing {
            None => {
                let subject = self.node().call_node().payload.last_target();
                let key =
                    ErrorKey::new(subject.as_deref().unwrap_or_default(), end.reason.as_str());
                self.run().fail(key);
            }
            Some(failing) => self.count_failing(failing),
        }
    }

    /// Counts the failed answer of a closed call as an error of a run of several calls.
    ///
    /// The layers have returned the failed answer already, so it is an error whatever the rest of
    /// the body brings.
    pub(super) fn count_abandoned(&self) {
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
    pub(super) fn count_success(&self) {
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
