//! Records metrics for each call and each run that ended, and counts attempts by their outcome.

use std::{sync::OnceLock, time::Duration};

use crate::{
    llm::GenAiOperation,
    metrics::{self, ChunkTimes, EndedCall},
    run::{
        reason::{ReasonClass, TerminalReason},
        state::{Identity, NodeState},
        tree::{End, Nanos, Node, NodeKind, nanos},
    },
};

/// The part of a call's metrics that is known before its end.
#[derive(Debug, Default)]
pub(crate) struct CallMetrics {
    /// The operation that the call's request names, as the first layer read it.
    operation: OnceLock<&'static GenAiOperation>,
    /// The chunks of the call's first stream with content.
    chunks: OnceLock<StreamChunks>,
}

/// The chunks with content of one stream, and their times on the clock of the tree.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamChunks {
    count: u32,
    first: Nanos,
    last: Nanos,
    /// Whether there were chunks since `last`.
    is_stale: bool,
}

impl StreamChunks {
    #[inline]
    pub(crate) fn count(&mut self) {
        self.count = self.count.saturating_add(1);
        self.is_stale = true;
    }

    /// Whether the first chunk has come, and its time is yet to be set.
    #[inline]
    pub(crate) const fn is_first(&self) -> bool {
        self.count == 1 && self.is_stale
    }

    /// Sets the time of the last chunk, and of the first chunk if no other has come. Does nothing
    /// if no chunk has come since the method last ran.
    ///
    /// The first chunk is timed as it comes. A later chunk gets the time of the wait that follows
    /// it, which reads the clock anyway: to read the clock per chunk would double the cost of the
    /// count.
    #[inline]
    pub(crate) fn time(&mut self, now: Nanos) {
        if self.is_first() {
            self.first = now;
        }
        if std::mem::take(&mut self.is_stale) {
            self.last = now;
        }
    }
}

impl Node<NodeState> {
    /// Names the operation of this node's call; the first name stays.
    pub(crate) fn name_operation(&self, operation: impl FnOnce() -> &'static GenAiOperation) {
        if let Some(call) = self.call_node().payload.call() {
            call.metrics.operation.get_or_init(operation);
        }
    }

    /// Stores the chunks of an ended stream for the metrics of this node's call.
    pub(crate) fn store_chunks(&self, mut chunks: StreamChunks) {
        if chunks.count == 0 {
            return;
        }
        if chunks.is_stale {
            chunks.time(nanos(self.now()));
        }
        if let Some(call) = self.call_node().payload.call() {
            // A call with several streams, as of a program's own retry, is timed by its first.
            let _stored_before = call.metrics.chunks.set(chunks);
        }
    }

    /// Counts this attempt under the result of `outcome`, unless it or an attempt within it was
    /// counted before.
    pub(crate) fn count_outcome(&self, outcome: impl FnOnce() -> &'static str) {
        if self.kind() == NodeKind::Attempt && !self.attempts().mark_counted() {
            metrics::attempt(self.attempts().target_label().as_ref(), outcome());
        }
    }

    /// The outcome label of an attempt without an answer: the deadline that ended it, or `given_up`.
    pub(crate) fn outcome_of_end(&self) -> &'static str {
        let end = self.nearest_end();
        let late = end.filter(|end| end.reason.class() == ReasonClass::Timeout);
        late.map_or("given_up", |end| end.reason.label())
    }

    /// Records the metrics of this call, which has ended and has no work; to be called once.
    pub(super) fn record_call(&self, end: &End) {
        let Some(call) = self.payload.call() else {
            return;
        };
        if end.reason.is_run_paused() {
            // The client sends the same turn again, and that one counts.
            return;
        }
        let chunks = call.metrics.chunks.get().map(|chunks| ChunkTimes {
            first: since(chunks.first, self),
            rest: Duration::from_nanos(chunks.last.saturating_sub(chunks.first)),
            more: chunks.count - 1,
        });
        let completed = end.reason == TerminalReason::Completed;
        let call = EndedCall {
            operation: call
                .metrics
                .operation
                .get()
                .unwrap_or(&&GenAiOperation::UNKNOWN),
            model: self.payload.last_target(),
            error: (!completed).then(|| end.reason.label()),
            elapsed: end.at().saturating_sub(self.opened()),
            usage: self.usage(),
            chunks,
        };
        call.record();
        // A call that a pump drains goes on after the disconnect, and ends when it is released.
        if end.reason == TerminalReason::ClientDisconnect && !self.is_closed_itself() {
            metrics::released(self.payload.now().saturating_sub(end.at()));
        }
    }

    /// Counts the end of this run. A run that its registry withdrew leaves no trace, and does not
    /// count.
    pub(in crate::run) fn record_run(&self, end: &End) {
        let withdrawn = |identity: &Identity| identity.admission.is_withdrawn();
        if !self.payload.identity().is_some_and(withdrawn) {
            metrics::run_ended(end.reason.label());
        }
    }
}

/// The time from the opening of `call` to `at`.
fn since(at: Nanos, call: &Node<NodeState>) -> Duration {
    Duration::from_nanos(at).saturating_sub(call.opened())
}
