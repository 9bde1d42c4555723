//! Settles the layer's node after the attempt's answer, and reports the attempt's end.

use std::fmt::Debug;

use super::report::AttemptReport;
use crate::{
    guarded::guarded,
    llm::failure::{Classifier, Failure},
    run::{End, Run, TerminalReason, Terminated},
    supervise::ResponseMarks,
    wall_clock::wall_clock,
};

/// The duty of a layer to settle its node once the attempt has ended.
#[derive(Debug)]
pub(super) struct Ownership {
    pub(super) guard: SettleGuard,
    pub(super) attempt: Run,
    /// The terminal reason for the layer's node if the layer returned a failed answer; else `None`.
    pub(super) failed: Option<TerminalReason>,
}

impl Ownership {
    /// The attempt's end, if a timeout, an abort or the like ended it before its answer ended.
    pub(super) fn cut(&self) -> Option<Terminated> {
        let end = self.attempt.node().own_end()?;
        (!self.is_end_of_answer(end)).then(|| self.attempt.to_terminated())
    }

    fn is_end_of_answer(&self, end: &End) -> bool {
        matches!(
            end.reason,
            TerminalReason::Completed | TerminalReason::Failed(_)
        ) || self.attempt.errors().classified().as_ref() == Some(&end.reason)
    }

    pub(super) fn settle(self) {
        let Some(end) = self.attempt.node().own_end() else {
            return;
        };
        let is_end_of_answer = self.is_end_of_answer(end);
        let failed = self.failed.filter(|_| is_end_of_answer);
        // The failure that was returned wins over the end of the answer's body. The body of a
        // failed answer may itself complete without an error.
        self.guard
            .settle(failed.unwrap_or_else(|| end.reason.clone()));
    }
}

/// Learns how the attempt that served a call ended.
pub trait CompletionObserver: Send + Sync + Debug {
    /// Takes the `reason` for which the attempt's node ended, and the failure that an error event of
    /// the stream reports. Then the reason has the class that the program's rules give. The method
    /// is not called if a node above ended the attempt.
    fn ended(self: Box<Self>, reason: &TerminalReason, failure: Option<&Failure>);
}

/// Reports to the policy's observer and to the program's hook how the attempt that serves the call
/// ends.
#[derive(Debug)]
pub(super) struct Completion {
    pub(super) attempt: Run,
    pub(super) observer: Option<Box<dyn CompletionObserver>>,
    pub(super) report: Option<Box<AttemptReport>>,
    pub(super) marks: Option<ResponseMarks>,
    pub(super) classifier: Classifier,
}

impl Completion {
    /// Reports the end of the attempt; to the observer only if no node above ended it.
    pub(super) fn notify(mut self) {
        let node = self.attempt.node();
        let end = node.own_end().filter(|end| end.origin == node.number());
        if let Some(end) = end {
            let failure = match end.reason {
                TerminalReason::Failed(_) => self.failure_of_event(),
                _ => None,
            };
            if let (Some(report), Some(failure)) = (&mut self.report, &failure) {
                report.classify(failure);
            }
            if let Some(observer) = self.observer {
                let reason = failure.as_ref().map(|it| TerminalReason::Failed(it.class));
                observer.ended(reason.as_ref().unwrap_or(&end.reason), failure.as_ref());
            }
        }
    }

    /// Classifies the stream's error event by the layer's classifier. `None` without an event, or
    /// if a rule panics.
    ///
    /// The supervised body settled the attempt's node without the program's rules.
    fn failure_of_event(&self) -> Option<Failure> {
        let event = self.marks.as_ref()?.failure()?;
        guarded(|| self.classifier.of_stream(event, wall_clock()))
    }
}

/// Settles its node as aborted if the guard drops while it still has the node.
///
/// [`settle`](Self::settle) settles the node at once, and [`release`](Self::release) hands the duty
/// to the caller. In a struct, declare the guard after the fields that belong to the node, so that
/// it drops last.
#[derive(Debug)]
pub(super) struct SettleGuard(Option<Run>);

impl SettleGuard {
    pub(super) const fn new(run: Run) -> Self {
        Self(Some(run))
    }

    /// The node that the guard settles.
    pub(super) const fn run(&self) -> &Run {
        self.0
            .as_ref()
            .expect("a guard has its node until it settles")
    }

    /// Releases the node from the guard; the caller settles it.
    pub(super) fn release(mut self) -> Run {
        let run = self.0.take();
        run.expect("a guard has its node until it settles")
    }

    pub(super) fn settle(self, reason: TerminalReason) {
        self.release().settle(reason);
    }
}

impl Drop for SettleGuard {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            #[cfg(feature = "metrics")]
            run.node().count_outcome(|| run.node().outcome_of_end());
            run.settle(TerminalReason::Aborted);
        }
    }
}
