use std::time::Duration;

use http::Request;

use crate::{
    run::{IdleTimer, Limits, Nanos, ResetOn, Run, Scope, TaskId, TerminalReason, nanos},
    supervise::{FrameKind, Observer, Policy},
};

/// The windows of a layer, or of one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Windows {
    pub(super) limit: Limit,
    pub(super) resets_on: ResetOn,
    pub(super) observes: bool,
}

/// What ends a node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    /// No progress for so long.
    Step { first: Duration, step: Duration },
    /// No sign of life for twice this interval.
    Heartbeat(Duration),
}

/// Measures silence towards one node.
#[derive(Debug)]
pub struct StepPolicy {
    silence: IdleTimer,
    /// The window from the first content on, if it is another.
    then: Option<Box<Duration>>,
    scope: Scope,
    /// It would have ended, which was told.
    told: bool,
}

impl Windows {
    pub(super) const fn new(window: Duration) -> Self {
        Self {
            limit: Limit::Step {
                first: window,
                step: window,
            },
            resets_on: ResetOn::Content,
            observes: false,
        }
    }

    pub(super) const fn heartbeat(interval: Duration) -> Self {
        Self {
            limit: Limit::Heartbeat(interval),
            resets_on: ResetOn::Content,
            observes: false,
        }
    }

    /// With what the program set for this request in their place.
    #[inline]
    pub(super) fn replaced_by<B>(mut self, request: &Request<B>) -> Self {
        if let Some(limits) = request.extensions().get::<Limits>() {
            let set = |limit: Option<Duration>| limit.filter(|limit| !limit.is_zero());
            if let Some(step) = set(limits.step) {
                self.limit = Limit::Step { first: step, step };
            }
            if let (Some(limit), Limit::Step { first, .. }) = (set(limits.first), &mut self.limit) {
                *first = limit;
            }
        }
        self
    }
}

impl StepPolicy {
    #[inline]
    pub(super) fn new(windows: Windows, found: &Run, scope: Scope) -> Self {
        let (silence, then) = match windows.limit {
            Limit::Step { first, step } => {
                let then = (first != step).then(|| Box::new(step));
                (IdleTimer::new(windows.resets_on, first), then)
            }
            Limit::Heartbeat(interval) => {
                found.expect_heartbeat(interval);
                (IdleTimer::lifeless(interval.saturating_mul(2)), None)
            }
        };
        Self {
            silence: if windows.observes {
                silence.observing()
            } else {
                silence
            },
            then,
            scope,
            told: false,
        }
    }

    /// Waits without a consequence for the node.
    #[cold]
    fn observe(&mut self, found: &Run, now: Duration, task: TaskId) -> Option<Nanos> {
        if self.told {
            return None;
        }
        let due = self.silence.wait(found.in_scope(self.scope), now, task)?;
        if due > nanos(now) {
            return Some(due);
        }
        self.told = true;
        let limit = Some(self.silence.limit());
        found.would_end(self.scope, &TerminalReason::StepTimeout, limit);
        None
    }

    /// From the first content on the other window holds.
    #[inline]
    fn begin(&mut self, tap: Option<&Observer>) {
        if self.then.is_some() && tap.is_some_and(Observer::has_content) {
            if let Some(window) = self.then.take() {
                self.silence.set_length(*window);
            }
        }
    }
}

impl Policy for StepPolicy {
    const READS: bool = true;

    fn pending(
        &mut self,
        found: &Run,
        tap: Option<&Observer>,
        now: Duration,
        task: TaskId,
    ) -> Option<Nanos> {
        self.begin(tap);
        if self.silence.is_of_life() && !tap.is_some_and(Observer::has_heartbeats) {
            // Nothing was promised: the open connection is life.
            return None;
        }
        let node = found.in_scope(self.scope);
        if !self.silence.observes() {
            return self.silence.wait(node, now, task);
        }
        self.observe(found, now, task)
    }

    #[inline]
    fn answered(&mut self, found: &Run) {
        // Until the body is polled it is the reader's time; a head is bytes, and
        // no content.
        self.frame(found, Some(FrameKind::Life), None);
    }

    #[inline]
    fn frame(&mut self, found: &Run, seen: Option<FrameKind>, tap: Option<&Observer>) {
        self.begin(tap);
        let resets = match self.silence.resets_on() {
            // What a layer of ours inserted says nothing of the upstream.
            ResetOn::AnyByte => seen != Some(FrameKind::Inserted),
            ResetOn::Content => seen == Some(FrameKind::Progress),
            ResetOn::Step => false,
        };
        if resets {
            self.silence.reset();
        } else if self.silence.is_counting() {
            self.silence
                .interrupt(found.in_scope(self.scope), found.now());
        }
    }

    fn failed(&mut self, found: &Run, now: Duration, task: TaskId) {
        self.silence.look(found.in_scope(self.scope), now, task);
    }

    #[inline]
    fn release(&mut self, found: &Run) {
        self.silence.close(found.in_scope(self.scope));
    }
}
