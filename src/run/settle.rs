//! How a node that somebody worked on ends, and what its failure counts for.

use std::sync::{Arc, atomic::Ordering};

use super::{
    NodeKind, ReasonClass, ResetOn, Run, TerminalReason,
    core::End,
    info::{Failing, Info},
};
use crate::retry_budget::{ErrorKey, RetryBudget, Verdict};

impl Run {
    /// The opener's word, once its work was dropped: stored only if nothing
    /// else was, and taken over by a run that was opened for this one call. A
    /// run that was given a name since it was opened goes on.
    pub(crate) fn settle(&self, reason: TerminalReason) {
        if self.kind() == NodeKind::Run && !self.node().payload.is_single() {
            self.node().leave();
            return;
        }
        let now = self.now();
        // Whoever judged the answer knows more than its status tells.
        let judged = self.kind() == NodeKind::Attempt && reason == TerminalReason::Completed;
        let failing = self.failing().filter(|_| judged || is_failure(&reason));
        let reason = match (&reason, &failing) {
            (TerminalReason::Failed(_) | TerminalReason::Completed, Some(failing)) => {
                failing.reason.clone()
            }
            _ => reason,
        };
        drop(self.node().settle(reason, now));
        if let Some(parent) = self.node().parent() {
            let end = self.node().nearest_end();
            // What ended by itself was a step of what goes on above; what ended
            // because that ended was none.
            if end.is_some_and(|end| end.origin == self.node().number()) {
                parent.record(ResetOn::Step, now);
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
        self.node().leave();
        if self.kind() == NodeKind::Call {
            self.count_failure(failing);
        }
    }

    /// A call that failed, after all its tries, is an error of its run. The run
    /// ends only now, with the answer handed on: what hit the limit is still
    /// answered as it was.
    fn count_failure(&self, failing: Option<Failing>) {
        let own = self
            .node()
            .own_end()
            .filter(|end| end.origin == self.node().number());
        // Ended otherwise, by a disconnect for one, it is nobody's failure.
        let as_judged =
            |reason: &TerminalReason| failing.as_ref().is_some_and(|it| it.reason == *reason);
        let Some(end) = own.filter(|end| is_failure(&end.reason) || as_judged(&end.reason)) else {
            return;
        };
        let Some(failing) = failing else {
            self.run().fail(|| ErrorKey::new("", end.reason.as_str()));
            return;
        };
        match failing.counted {
            None => self.run().fail(|| failing.key),
            Some(Verdict::RunSpent) => drop(self.run().end(TerminalReason::RunErrors)),
            // A key that was spent inside a call is the end of that call alone.
            Some(_) => {}
        }
    }

    /// Counts an error of this run, and ends it if that was one too many.
    pub(super) fn fail(&self, key: impl FnOnce() -> ErrorKey) {
        let reason = match self.node().nearest_run().payload.errors() {
            Some(errors) => match errors.count(key()) {
                Verdict::Within => return,
                Verdict::KeySpent => TerminalReason::RetryBudget,
                Verdict::RunSpent => TerminalReason::RunErrors,
            },
            None => return,
        };
        self.run().end(reason);
    }

    /// Counts an error of the nearest run, and ends nothing.
    pub(crate) fn count_error(&self, key: ErrorKey) -> Verdict {
        let errors = self.nearest().payload.errors();
        errors.map_or(Verdict::Within, |errors| errors.count(key))
    }

    /// Limits how many errors the nearest run may make, in all and of one kind:
    /// what `budget` says, and never more than a budget said before. Calls are
    /// limited by the layers; this is for a run of tools alone.
    pub fn limit_errors(&self, budget: &RetryBudget) {
        let settings = budget.settings();
        let run = &self.nearest().payload;
        // A run that is one call is over with its first failure.
        if !run.is_single() {
            run.limit_errors(settings.per_error_key, settings.per_run);
        }
    }

    /// What to call the failure of this node, should it fail.
    pub(crate) fn fail_as(&self, failing: Failing) {
        self.node().payload.fail_as(failing);
    }

    pub(crate) fn failing(&self) -> Option<Failing> {
        self.node().payload.failing()
    }

    /// Counts a try of the call that this node belongs to, and answers its
    /// number. The first try of a layer inside of another is that one's try.
    pub(crate) fn count_try(&self, again: bool) -> u32 {
        let tries = self.call_info().tries();
        if self.kind() == NodeKind::Attempt && !again {
            return tries.load(Ordering::Acquire);
        }
        tries.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// How many tries the call has made.
    pub(crate) fn tries(&self) -> u32 {
        self.call_info().tries().load(Ordering::Acquire)
    }

    /// Says whom this attempt goes to.
    pub(crate) fn serve_by<T: Send + Sync + 'static>(&self, server: Arc<T>) {
        // An attempt goes to one; a second word is not heard.
        let _ = self.node().payload.server().set(server);
    }

    /// Whom this attempt goes to, as the nearest layer said that chose it.
    pub(crate) fn served_by<T: Send + Sync + 'static>(&self) -> Option<&T> {
        let nodes = std::iter::once(&**self.node()).chain(self.node().ancestors());
        let attempts = nodes.take_while(|node| node.kind() == NodeKind::Attempt);
        let mut servers = attempts.filter_map(|node| node.payload.server().get());
        servers.find_map(|server| server.downcast_ref())
    }

    /// The nearest node that is no attempt.
    fn call_info(&self) -> &Info {
        let mut nodes = std::iter::once(&**self.node()).chain(self.node().ancestors());
        let call = nodes.find(|node| node.kind() != NodeKind::Attempt);
        &call.unwrap_or(self.node()).payload
    }
}

fn is_failure(reason: &TerminalReason) -> bool {
    matches!(reason.class(), ReasonClass::Failure | ReasonClass::Timeout)
}
