use std::task::{Context, Poll};

use super::{Facts, Policy, Seen, Tap};
use crate::{
    BoxError,
    error::chain,
    run::{Drive, Run, Step, StepKind, TaskId, TerminalReason, Terminated, Turn},
    sse::Truncated,
    upstream::{FailureClass, TransportError},
};

/// How many ready frames may pass between two looks at the clock.
const READY_FRAMES: u8 = 16;

/// What a layer keeps of one call, from its start to the end of its body.
#[derive(Debug)]
pub(crate) struct Supervision<P> {
    pub(super) found: Run,
    pub(super) policy: P,
    pub(super) tap: Option<Tap>,
    pub(super) facts: Facts,
    owns: bool,
    ready: u8,
    drive: Drive,
}

impl<P: Policy> Supervision<P> {
    pub(super) fn new(entry: super::Entry, facts: Facts, policy: P) -> Self {
        Self {
            found: entry.run,
            policy,
            tap: None,
            facts,
            owns: entry.owns,
            ready: 0,
            drive: Drive::default(),
        }
    }

    pub(super) const fn owns(&self) -> bool {
        self.owns
    }

    pub(super) const fn reads(&self) -> bool {
        P::READS || self.owns
    }

    /// Whether somebody ended the node. Looked at before anything is polled: a
    /// stored reason beats a ready frame.
    pub(super) fn is_over(&self) -> bool {
        self.found.node().own_end().is_some()
    }

    /// Everything below is pending: looks at the clocks, else sees to it that
    /// the task is polled again in time. Answers whether the node is over.
    pub(super) fn pending(&mut self, turn: Turn, cx: &mut Context<'_>) -> Poll<()> {
        self.ready = 0;
        let now = self.found.at(turn.now());
        if let Some(tap) = &mut self.tap {
            tap.note(&self.found, now);
        }
        let deadline = self
            .policy
            .pending(&self.found, self.tap.as_ref(), now, turn.task());
        if deadline.is_some_and(|at| at <= now) {
            // What the policy measures may stand on an ancestor: check walks
            // from the run down, so the outermost that has passed is latched.
            drop(self.found.node().check(now, turn.task()));
        }
        if self.is_over() {
            return Poll::Ready(());
        }
        self.drive.wait(&turn, &self.found, deadline, cx);
        Poll::Pending
    }

    /// A frame is about to be handed on. Answers whether a clock forbids it.
    pub(super) fn frame(&mut self, seen: Option<Seen>) -> bool {
        self.policy.frame(&self.found, seen);
        if !P::TIMED && seen.is_none() {
            return false;
        }
        self.ready += 1;
        if self.ready < READY_FRAMES {
            return false;
        }
        self.ready = 0;
        let now = self.found.now();
        if let Some(tap) = &mut self.tap {
            tap.note(&self.found, now);
        }
        if P::TIMED {
            drop(self.found.node().check(now, TaskId::NONE));
        }
        self.is_over()
    }

    /// The error to hand on for one that came from below, and for the node.
    pub(super) fn failed(&mut self, error: BoxError) -> BoxError {
        let now = self.found.now();
        if !self.is_over() {
            // Clocks that passed at the same time come before the inner error.
            if self.found.node().check(now, TaskId::NONE).is_ok() {
                self.policy.failed(&self.found, now);
            }
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
                self.settle(TerminalReason::Failed(class_of(&error)));
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
    pub(super) fn completed(&mut self) {
        if self.owns {
            let reason = self
                .tap
                .as_ref()
                .map_or(TerminalReason::Completed, Tap::verdict);
            if reason == TerminalReason::Completed {
                self.found.note(self.answered());
            }
            self.settle(reason);
        }
        self.finish();
    }

    fn answered(&self) -> Step {
        let step = Step::new(StepKind::LlmResponse);
        let why = self.tap.as_ref().and_then(Tap::stop_reason);
        match why {
            Some(why) => step.detail(String::from(&*why)),
            None => step,
        }
    }

    /// Gives back what is registered; call after the inner one was dropped.
    pub(super) fn finish(&mut self) {
        self.policy.release(&self.found);
        self.drive.release(&self.found);
        self.settle(TerminalReason::Aborted);
    }

    fn settle(&mut self, reason: TerminalReason) {
        if std::mem::take(&mut self.owns) {
            self.found.settle(reason);
        }
    }
}

fn class_of(error: &BoxError) -> FailureClass {
    let cut = chain(&**error).any(|error| error.is::<Truncated>());
    if cut || TransportError::is_in(&**error) {
        FailureClass::Transport
    } else {
        FailureClass::Server
    }
}
