//! What a layer keeps of one call, and what it does at each poll.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::LengthLimitError;

use super::{
    observer::{FrameKind, Observer, ResponseFacts},
    policy::Policy,
    timer::TaskTimer,
};
use crate::{
    error::{BoxError, InvalidRequest, RequestCut, chain},
    llm::{
        dialect::Truncated,
        failure::{Failure, FailureClass},
    },
    run::{PollScope, ReasonClass, Run, Step, StepKind, TaskId, TerminalReason, Terminated, nanos},
};

/// How many ready frames may pass between two looks at the clock.
const READY_FRAMES: u8 = 16;

/// What a layer keeps of one call, from its start to the end of its body.
#[derive(Debug)]
pub(crate) struct Supervisor<P> {
    pub(super) found: Run,
    pub(super) policy: P,
    reading: FailureRead,
    owns: bool,
    /// The body came to its end, and the node is settled later.
    ended: bool,
    ready: u8,
    drive: TaskTimer,
}

/// What is known of the answer.
#[derive(Debug)]
enum FailureRead {
    /// Nobody here needs to know.
    Nothing,
    /// It has not come yet.
    Ahead(ResponseFacts),
    Tap(Observer),
}

/// Why a body does not go on.
#[derive(Debug)]
pub(super) enum StopCause {
    /// It came to its end.
    Ended,
    /// It came to an end, without its terminator.
    Cut(Truncated),
    /// The inner body failed.
    Failed,
    /// The node is over.
    Over,
}

impl<P: Policy> Supervisor<P> {
    #[inline]
    pub(super) fn new<B>(entry: super::policy::Claim, policy: P, request: &Request<B>) -> Self {
        let reading = if P::READS || entry.owns {
            FailureRead::Ahead(ResponseFacts::of(request))
        } else {
            FailureRead::Nothing
        };
        Self {
            found: entry.run,
            policy,
            reading,
            owns: entry.owns,
            ended: false,
            ready: 0,
            drive: TaskTimer::default(),
        }
    }

    /// Reads the head of the answer, and says on it what it should.
    #[inline]
    pub(super) fn answered<B: Body>(&mut self, answer: &mut Response<B>) {
        if let FailureRead::Ahead(facts) = &mut self.reading {
            let facts = std::mem::take(facts);
            let mut tap = Observer::new(facts, answer);
            tap.begin(&self.found);
            self.reading = FailureRead::Tap(tap);
        }
        if P::TELLS && self.owns {
            // For layers further out, which never open a node.
            answer.extensions_mut().insert(self.found.clone());
        }
        self.policy.answered(&self.found);
        self.policy.head(&self.found, answer.headers_mut());
    }

    #[inline]
    pub(super) const fn tap(&self) -> Option<&Observer> {
        match &self.reading {
            FailureRead::Tap(tap) => Some(tap),
            _ => None,
        }
    }

    #[inline]
    pub(super) const fn found(&self) -> &Run {
        &self.found
    }

    /// Whether the node is over. Looked at before anything is polled: a stored reason
    /// beats a ready frame. Asks the nodes above as well: another thread may have stored
    /// an end there that has not spread yet.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.found.node().is_over()
    }

    /// Whether the node was ended while what is inside was polled. A layer further in
    /// may have settled it with what it came to, which cuts nothing.
    #[inline]
    pub(super) fn is_cut(&self) -> bool {
        self.is_over() && self.was_cut()
    }

    #[cold]
    fn was_cut(&self) -> bool {
        let node = self.found.node();
        node.nearest_end().is_some_and(|end| {
            match end.reason.class() {
                ReasonClass::Success | ReasonClass::Failure => end.origin != node.number(),
                // The answer that hits a limit of its run is handed on as it was.
                ReasonClass::Limit => false,
                ReasonClass::Timeout | ReasonClass::Cancelled => true,
            }
        })
    }

    /// Everything below is pending: looks at the clocks, else sees to it that
    /// the task is polled again in time. Answers whether the node is over.
    pub(super) fn pending(&mut self, turn: &PollScope, cx: &mut Context<'_>) -> Poll<StopCause> {
        self.ready = 0;
        let now = self.found.at(turn.now());
        self.note(now);
        let tap = match &self.reading {
            FailureRead::Tap(tap) => Some(tap),
            _ => None,
        };
        let mut deadline = self.policy.pending(&self.found, tap, now, turn.task());
        let node = self.found.node();
        if node.is_closing() {
            // Whatever is measured here: what drains has a limit, which somebody
            // has to keep.
            deadline = deadline.into_iter().chain(node.next_deadline()).min();
        }
        let passed = deadline.is_some_and(|at| at <= nanos(now));
        if passed && self.tap().is_some_and(Observer::is_complete) {
            // The answer was handed on whole; the transport alone has not ended.
            return Poll::Ready(StopCause::Ended);
        }
        if passed {
            // What the policy measures may stand on an ancestor: check walks
            // from the run down, so the outermost that has passed is latched.
            drop(self.found.node().check(now, turn.task()));
        }
        if self.is_over() {
            return Poll::Ready(StopCause::Over);
        }
        self.drive.wait(turn, &self.found, deadline, cx);
        Poll::Pending
    }

    fn note(&mut self, now: Duration) {
        if let FailureRead::Tap(tap) = &mut self.reading {
            tap.note(&self.found, now);
        }
    }

    /// A frame is about to be handed on, unless something forbids it.
    #[inline]
    pub(super) fn frame(&mut self, frame: &Frame<Bytes>) -> Result<(), StopCause> {
        if self.owns && self.is_cut() {
            // It may be the frame that completes the answer, and what was ended before
            // it was there is not completed by it.
            return Err(StopCause::Over);
        }
        if let Some(data) = frame.data_ref() {
            self.policy.data(&self.found, data);
        }
        let seen = match &mut self.reading {
            FailureRead::Tap(tap) => match frame.data_ref() {
                Some(data) => Some(tap.frame(data)),
                None => {
                    // Nothing but the end comes after trailers.
                    tap.finish().map_err(StopCause::Cut)?;
                    tap.trailers();
                    Some(FrameKind::Life)
                }
            },
            _ => None,
        };
        let tap = match &self.reading {
            FailureRead::Tap(tap) => Some(tap),
            _ => None,
        };
        self.policy.frame(&self.found, seen, tap);
        if P::TIMED {
            self.ready += 1;
            if self.ready >= READY_FRAMES && self.look() {
                return Err(StopCause::Over);
            }
        }
        Ok(())
    }

    /// Compares the clocks after a run of ready frames. Answers whether the
    /// node is over.
    #[cold]
    fn look(&mut self) -> bool {
        self.ready = 0;
        let now = self.found.now();
        let passed = self
            .found
            .node()
            .next_deadline()
            .is_some_and(|at| at <= nanos(now));
        if passed {
            drop(self.found.node().check(now, TaskId::NONE));
        }
        self.is_over()
    }
}

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
