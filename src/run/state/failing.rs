//! What a node fails with, and how often a run may fail.

use std::sync::PoisonError;

use super::NodeState;
use crate::run::{
    limits::{ErrorAllowance, ErrorCounts, ErrorKey},
    reason::TerminalReason,
};

/// What a node fails with, if it fails.
#[derive(Clone, Debug)]
pub(crate) struct Failing {
    pub(crate) key: ErrorKey,
    /// As what it was judged; none if it was not, and is handed on.
    pub(crate) reason: Option<TerminalReason>,
    /// What counting it said, if it was counted already.
    pub(crate) counted: Option<ErrorAllowance>,
    /// Nobody was asked, so nothing has failed once more.
    pub(crate) unasked: bool,
}

impl NodeState {
    /// What to call the failure of this node, should it fail.
    pub(crate) fn fail_as(&self, failing: Failing) {
        let mut slot = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Box::new(failing));
    }

    /// It does not fail as was said before.
    pub(crate) fn forget_failing(&self) {
        let mut slot = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = None;
    }

    pub(crate) fn failing(&self) -> Option<Failing> {
        let slot = self.failing.lock().unwrap_or_else(PoisonError::into_inner);
        slot.as_deref().cloned()
    }

    /// Sets how many errors a run may make; a limit that is there only tightens.
    pub(crate) fn limit_errors(
        &self,
        per_key: Option<u32>,
        per_run: Option<u32>,
        in_a_row: Option<u32>,
    ) {
        if per_key.or(per_run).or(in_a_row).is_some() {
            let none = || Box::new(ErrorCounts::new(None, None));
            let errors = self.errors.get_or_init(none);
            errors.tighten(per_key, per_run);
            errors.tighten_in_a_row(in_a_row);
        }
    }

    pub(crate) fn errors(&self) -> Option<&ErrorCounts> {
        self.errors.get().map(|errors| &**errors)
    }
}
