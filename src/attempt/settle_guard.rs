use crate::run::{Run, TerminalReason};

/// Settles the node that a layer opened, or was the first to see. Declared
/// after what it is about, so that it drops last.
#[derive(Debug)]
pub(super) struct SettleGuard {
    run: Run,
    verdict: Option<TerminalReason>,
}

impl SettleGuard {
    pub(super) const fn new(run: Run) -> Self {
        Self { run, verdict: None }
    }

    /// What the node comes to, unless it was ended.
    pub(super) fn decide(&mut self, reason: Option<TerminalReason>) {
        self.verdict = reason;
    }
}

impl Drop for SettleGuard {
    fn drop(&mut self) {
        let verdict = self.verdict.take();
        self.run.settle(verdict.unwrap_or(TerminalReason::Aborted));
    }
}
