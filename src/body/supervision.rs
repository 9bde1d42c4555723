use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};

use super::{Facts, Policy, Seen, Tap};
use crate::{
    BoxError,
    error::RequestCut,
    error::chain,
    run::{Drive, Run, Step, StepKind, TaskId, TerminalReason, Terminated, Turn, nanos},
    sse::Truncated,
    upstream::Failure,
};

/// How many ready frames may pass between two looks at the clock.
const READY_FRAMES: u8 = 16;

/// What a layer keeps of one call, from its start to the end of its body.
#[derive(Debug)]
pub(crate) struct Supervision<P> {
    pub(super) found: Run,
    pub(super) policy: P,
    reading: Reading,
    owns: bool,
    /// The body came to its end, and the node is settled later.
    ended: bool,
    ready: u8,
    drive: Drive,
}

/// What is known of the answer.
#[derive(Debug)]
enum Reading {
    /// Nobody here needs to know.
    Nothing,
    /// It has not come yet.
    Ahead(Facts),
    Tap(Tap),
}

/// Why a body does not go on.
#[derive(Debug)]
pub(super) enum Stop {
    /// It came to its end.
    Ended,
    /// It came to an end, without its terminator.
    Cut(Truncated),
    /// The inner body failed.
    Failed,
    /// The node is over.
    Over,
}

impl<P: Policy> Supervision<P> {
    #[inline]
    pub(super) fn new<B>(entry: super::Entry, policy: P, request: &Request<B>) -> Self {
        let reading = if P::READS || entry.owns {
            Reading::Ahead(Facts::of(request))
        } else {
            Reading::Nothing
        };
        Self {
            found: entry.run,
            policy,
            reading,
            owns: entry.owns,
            ended: false,
            ready: 0,
            drive: Drive::default(),
        }
    }

    /// Reads the head of the answer, and says on it what it should.
    #[inline]
    pub(super) fn answered<B: Body>(&mut self, answer: &mut Response<B>) {
        if let Reading::Ahead(facts) = &mut self.reading {
            let facts = std::mem::take(facts);
            let mut tap = Tap::new(facts, answer);
            tap.begin(&self.found);
            self.reading = Reading::Tap(tap);
        }
        if P::TELLS && self.owns {
            // For layers further out, which never open a node.
            answer.extensions_mut().insert(self.found.clone());
        }
        self.policy.answered(&self.found);
        self.policy.head(&self.found, answer.headers_mut());
    }

    #[inline]
    pub(super) const fn tap(&self) -> Option<&Tap> {
        match &self.reading {
            Reading::Tap(tap) => Some(tap),
            _ => None,
        }
    }

    #[inline]
    pub(super) const fn found(&self) -> &Run {
        &self.found
    }

    /// Whether somebody ended the node. Looked at before anything is polled: a
    /// stored reason beats a ready frame.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        self.found.node().own_end().is_some()
    }

    /// Everything below is pending: looks at the clocks, else sees to it that
    /// the task is polled again in time. Answers whether the node is over.
    pub(super) fn pending(&mut self, turn: &Turn, cx: &mut Context<'_>) -> Poll<Stop> {
        self.ready = 0;
        let now = self.found.at(turn.now());
        self.note(now);
        let tap = match &self.reading {
            Reading::Tap(tap) => Some(tap),
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
        if passed && self.tap().is_some_and(Tap::is_complete) {
            // The answer was handed on whole; the transport alone has not ended.
            return Poll::Ready(Stop::Ended);
        }
        if passed {
            // What the policy measures may stand on an ancestor: check walks
            // from the run down, so the outermost that has passed is latched.
            drop(self.found.node().check(now, turn.task()));
        }
        if self.is_over() {
            return Poll::Ready(Stop::Over);
        }
        self.drive.wait(turn, &self.found, deadline, cx);
        Poll::Pending
    }

    fn note(&mut self, now: Duration) {
        if let Reading::Tap(tap) = &mut self.reading {
            tap.note(&self.found, now);
        }
    }

    /// A frame is about to be handed on, unless something forbids it.
    #[inline]
    pub(super) fn frame(&mut self, frame: &Frame<Bytes>) -> Result<(), Stop> {
        if let Some(data) = frame.data_ref() {
            self.policy.data(&self.found, data);
        }
        let seen = match &mut self.reading {
            Reading::Tap(tap) => match frame.data_ref() {
                Some(data) => Some(tap.frame(data)),
                None => {
                    // Nothing but the end comes after trailers.
                    tap.finish().map_err(Stop::Cut)?;
                    tap.trailers();
                    Some(Seen::Life)
                }
            },
            _ => None,
        };
        let tap = match &self.reading {
            Reading::Tap(tap) => Some(tap),
            _ => None,
        };
        self.policy.frame(&self.found, seen, tap);
        if P::TIMED {
            self.ready += 1;
            if self.ready >= READY_FRAMES && self.look() {
                return Err(Stop::Over);
            }
        }
        Ok(())
    }

    /// The error with which a body stops, if it is one; what is inside has been
    /// dropped.
    #[cold]
    pub(super) fn stopped<T>(
        &mut self,
        why: Stop,
        task: TaskId,
        polled: Poll<Option<Result<T, BoxError>>>,
    ) -> Option<BoxError> {
        match (why, polled) {
            (Stop::Ended, _) => {
                self.completed();
                None
            }
            (Stop::Cut(cut), _) => Some(self.failed(cut.into(), task)),
            (Stop::Failed, Poll::Ready(Some(Err(error)))) => Some(self.failed(error, task)),
            (Stop::Failed | Stop::Over, _) => Some(self.over()),
        }
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

    /// The error to hand on for one that came from below, and for the node.
    pub(super) fn failed(&mut self, error: BoxError, task: TaskId) -> BoxError {
        self.tell();
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
    pub(super) fn over(&mut self) -> BoxError {
        let error = self.found.to_terminated().into();
        self.finish();
        self.policy.error(&self.found, error)
    }

    /// The inner body ended, or was dropped complete.
    #[inline]
    pub(super) fn completed(&mut self) {
        self.tell();
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
        self.tap().map_or(TerminalReason::Completed, Tap::verdict)
    }

    fn last_step(&self) -> Step {
        let step = Step::new(StepKind::LlmResponse);
        let why = self.tap().and_then(Tap::stop_reason);
        match why {
            Some(why) => step.detail(String::from(&*why)),
            None => step,
        }
    }

    /// Gives back what is registered; call after the inner one was dropped.
    #[inline]
    pub(super) fn finish(&mut self) {
        self.tell();
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
    fn tell(&mut self) {
        if let Reading::Tap(tap) = &mut self.reading {
            tap.tell(&self.found);
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

/// What an error that is no end amounts to.
pub(crate) fn reason_of(error: &BoxError) -> TerminalReason {
    if chain(&**error).any(|error| error.is::<RequestCut>()) {
        return TerminalReason::ClientDisconnect;
    }
    TerminalReason::Failed(Failure::of_error(&**error).class)
}
