//! How a supervised call ends, and what is handed on then.

use std::task::Poll;

use super::{FailureRead, StopCause, Supervisor};
use crate::{
    error::{BoxError, InvalidRequest, RequestCut, chain},
    llm::failure::{Failure, FailureClass},
    run::{Step, StepKind, TaskId, TerminalReason, Terminated},
    supervise::{observer::Observer, policy::Policy},
};
use http_body_util::LengthLimitError;

impl<P: Policy> Supervisor<P> {
    /// The error with which a body stops, if it is one; what is inside has been
    /// dropped.
    #[cold]
    pub(in crate::supervise) fn stopped<T>(
        &mut self,
        why: StopCause,
        task: TaskId,
        polled: Poll<Option<Result<T, BoxError>>>,
    ) -> Option<BoxError> {
        match (why, polled) {
            (StopCause::Ended, Poll::Ready(_)) if self.is_cut() => Some(self.over()),
            (StopCause::Ended, _) => {
                self.completed();
                None
            }
            (StopCause::Cut(cut), _) => Some(self.failed(cut.into(), task)),
            (StopCause::Failed, Poll::Ready(Some(Err(error)))) => Some(self.failed(error, task)),
            (StopCause::Failed | StopCause::Over, _) => Some(self.over()),
        }
    }

    /// The error to hand on for one that came from below, and for the node.
    pub(in crate::supervise) fn failed(&mut self, error: BoxError, task: TaskId) -> BoxError {
        self.report();
        if self.tap().is_none() && is_refusal(&error) {
            self.found.node().payload.set_refused(true);
        }
        let now = self.found.now();
        if !self.is_over() {
            // Clocks that passed at the same time come before the inner error.
            // What stood ready since the last wait has stopped its windows.
            self.policy.failed(&self.found, now, task);
            drop(self.found.node().check(now, task));
        }
        let cut = Terminated::find(&*error).map(|cut| (cut.is_end_of(&self.found), cut));
        let error = match (self.is_over(), cut) {
            // It says already why this node ended.
            (true, Some((true, _))) => error,
            (true, _) => self.found.to_terminated().because(error).into(),
            (false, Some((_, cut))) if cut.is_kin_of(&self.found) => {
                // The last attempt's own end is the call's.
                let reason = cut.reason.clone();
                self.settle(reason);
                error
            }
            (false, _) => {
                self.settle(reason_of(&error));
                error
            }
        };
        self.finish();
        self.policy.error(&self.found, error)
    }

    /// The error to hand on when the node was ended.
    pub(in crate::supervise) fn over(&mut self) -> BoxError {
        let error = self.found.to_terminated().into();
        self.finish();
        self.policy.error(&self.found, error)
    }

    /// The answer is a failure, though its body did not break.
    pub(in crate::supervise) fn fail(&mut self, class: FailureClass) {
        self.report();
        self.settle(TerminalReason::Failed(class));
        self.finish();
    }

    /// The inner body ended, or was dropped complete.
    #[inline]
    pub(in crate::supervise) fn completed(&mut self) {
        self.report();
        if self.owns {
            let reason = self.verdict();
            if reason == TerminalReason::Completed {
                self.found.note(self.last_step());
            }
            if P::DEFERS {
                self.ended = true;
                return self.release();
            }
            self.settle(reason);
        }
        self.finish();
    }

    fn verdict(&self) -> TerminalReason {
        self.tap()
            .map_or(TerminalReason::Completed, Observer::verdict)
    }

    fn last_step(&self) -> Step {
        let step = Step::new(StepKind::LlmResponse);
        let why = self.tap().and_then(Observer::stop_reason);
        match why {
            Some(why) => step.detail(String::from(&*why)),
            None => step,
        }
    }

    /// Gives back what is registered; call after the inner one was dropped.
    #[inline]
    pub(in crate::supervise) fn finish(&mut self) {
        self.report();
        self.release();
        if self.owns {
            let ended = P::DEFERS && self.ended;
            self.settle(if ended {
                self.verdict()
            } else {
                TerminalReason::Aborted
            });
        }
    }

    /// Before the node is settled: whoever is told of its end is told of this
    /// too.
    fn report(&mut self) {
        if let FailureRead::Tap(tap) = &mut self.reading {
            tap.report(&self.found);
        }
    }

    #[inline]
    fn release(&mut self) {
        self.policy.release(&self.found);
        self.drive.release(&self.found);
    }

    #[inline]
    fn settle(&mut self, reason: TerminalReason) {
        if std::mem::take(&mut self.owns) {
            self.found.settle(reason);
        }
    }
}

/// Whether the request could not be read, or could be sent to no upstream as it is.
fn is_refusal(error: &BoxError) -> bool {
    chain(&**error).any(|cause| {
        cause.is::<InvalidRequest>() || cause.is::<LengthLimitError>() || cause.is::<RequestCut>()
    })
}

/// What an error that is no end amounts to.
pub(crate) fn reason_of(error: &BoxError) -> TerminalReason {
    if chain(&**error).any(|error| error.is::<RequestCut>()) {
        return TerminalReason::ClientDisconnect;
    }
    TerminalReason::Failed(Failure::of_error(&**error).class)
}
