use super::budget::Permit;
use crate::run::{Run, TerminalReason};

/// A try that may start as soon as the service is ready.
#[derive(Debug)]
pub(super) struct Admitted {
    // None once it has started: what watches it settles it then.
    attempt: Option<Run>,
    grant: Option<Permit<'static>>,
}

impl Admitted {
    pub(super) const fn new(attempt: Run, grant: Option<Permit<'static>>) -> Self {
        let attempt = Some(attempt);
        Self { attempt, grant }
    }

    pub(super) const fn attempt(&self) -> Option<&Run> {
        self.attempt.as_ref()
    }

    /// It starts: what was paid for it is spent.
    pub(super) fn begin(mut self) {
        if let Some(grant) = self.grant.take() {
            grant.spend();
        }
        self.attempt = None;
    }

    /// It failed before it started.
    pub(super) fn fail(mut self, reason: TerminalReason) {
        if let Some(attempt) = self.attempt.take() {
            attempt.settle(reason);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if let Some(attempt) = &self.attempt {
            attempt.settle(TerminalReason::Aborted);
        }
    }
}
