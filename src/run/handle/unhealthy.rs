use std::time::Duration;

use super::Run;
use crate::run::{
    reason::TerminalReason,
    tree::{Measure, Passed, TaskId},
};

impl Run {
    /// Ends a node whose upstream sent nothing for `silent` and failed its health
    /// probes, unless a clock of its own or of one above it comes first.
    pub(crate) fn end_unwell(&self, silent: Duration) {
        let now = self.now();
        if self.node().check(now, TaskId::NONE).is_err() {
            return;
        }
        let passed = Passed {
            limit: Some(silent),
            measure: Measure::Unwell,
        };
        // Losing means that it is over as well.
        drop(
            self.node()
                .end(TerminalReason::StepTimeout, Some(passed), now),
        );
    }
}
