//! The failure as which a node would count, if it fails.

use super::NodeState;
use crate::run::{
    limits::{ErrorAllowance, ErrorKey},
    reason::TerminalReason,
};

/// The failure as which a node counts, if it fails.
#[derive(Clone, Debug)]
pub(crate) struct Failing {
    pub(crate) key: ErrorKey,
    /// The reason in the judgement of the failed answer; `None` if it was not judged.
    pub(crate) reason: Option<TerminalReason>,
    /// The result of counting the failure, if it was counted already.
    pub(crate) counted: Option<ErrorAllowance>,
    /// Whether no upstream was asked: then there is no further failure to count.
    pub(crate) unasked: bool,
}

impl NodeState {
    /// Sets the failure as which this node would count; `None` clears it.
    pub(crate) fn fail_as(&self, failing: Option<Failing>) {
        let failing = failing.map(Box::new);
        let before = std::mem::replace(&mut *self.failing.lock(), failing);
        drop(before);
    }

    pub(crate) fn failing(&self) -> Option<Failing> {
        self.failing.lock().as_deref().cloned()
    }
}
