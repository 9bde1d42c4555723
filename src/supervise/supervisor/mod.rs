//! What a layer keeps of one call, and what it does at each poll.

mod ending;

pub(crate) use self::ending::reason_of;

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};

use super::{
    observer::{FrameKind, Observer, ResponseFacts},
    policy::Policy,
    timer::TaskTimer,
};
use crate::{
    llm::dialect::Truncated,
    run::{PollScope, ReasonClass, Run, TaskId, nanos},
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
    pub(super) fn new<B>(entry: super::claim::Claim, policy: P, request: &Request<B>) -> Self {
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
