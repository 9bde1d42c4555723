//! The tokens that upstreams report.

use std::sync::Arc;

use super::Run;
use crate::{
    llm::dialect::Usage,
    run::{
        state::NodeState,
        tree::{Node, NodeKind},
    },
};

impl Run {
    /// The tokens that upstreams reported at or below this node so far.
    ///
    /// For a call these are the tokens of all its attempts, failed ones included; for a run, the
    /// tokens of all its calls and of its [child](Self::child) runs. The method returns `None` if
    /// no upstream reported any.
    ///
    /// The layer that classifies an answer counts its tokens once, when the answer's body ended or
    /// was dropped. A layer of your own that turns a stream into another answer should keep the
    /// `ResponseMarks` extension, else the new answer is classified, and counted, as a stream of
    /// its own. An answer that costs nothing is marked as [`NotCounted`](crate::run::NotCounted).
    #[must_use]
    pub fn usage(&self) -> Option<Usage> {
        self.node().payload.with_reported(|reported| reported.usage)
    }

    /// Records the usage of an ended answer on this node and its ancestors. The stop reason is
    /// recorded on the nodes up to the call.
    pub(crate) fn report(&self, usage: Option<Usage>, stop_reason: Option<&Arc<str>>) {
        if usage.is_none() && stop_reason.is_none() {
            return;
        }
        let mut stop_reason = stop_reason;
        for node in self.node().path() {
            node.payload.report(usage, stop_reason);
            if node.kind() != NodeKind::Attempt {
                // Above its call the answer is one of many, so its stop reason is not recorded
                // there.
                stop_reason = None;
            }
        }
    }
}

impl Node<NodeState> {
    pub(in crate::run) fn usage(&self) -> Option<Usage> {
        self.payload.with_reported(|reported| reported.usage)
    }
}
