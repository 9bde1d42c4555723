//! A window of silence that a layer holds a node to.

use std::time::Duration;

use super::observer::{FrameKind, Observer};
use crate::run::{IdleTimer, Nanos, ResetOn, Run, Scope, TaskId, TerminalReason, nanos};

/// A window of silence on one node, for one layer of one call.
#[derive(Debug)]
pub(crate) struct StepWindow {
    timer: IdleTimer,
    /// The length from the first content on.
    step: Nanos,
    scope: Scope,
    /// The events that reset the window: `None` for every byte, from the stream's first
    /// heartbeat on.
    resets_on: Option<ResetOn>,
    /// Whether the window only measures: then observers get a notice, and the node goes on.
    observes: bool,
    /// Whether the response has had content, or content changes nothing.
    has_content: bool,
    /// Whether observers got their notice that the node would have ended.
    has_notified: bool,
}

impl StepWindow {
    /// Makes a window on progress: `first` until the first content, then `step`.
    #[inline]
    pub(crate) fn new(first: Duration, step: Duration, resets_on: ResetOn, scope: Scope) -> Self {
        Self {
            timer: IdleTimer::new(resets_on, first),
            step: nanos(step),
            scope,
            resets_on: Some(resets_on),
            observes: false,
            has_content: first == step,
            has_notified: false,
        }
    }

    /// Makes a window on signs of life, for a stream that has sent a heartbeat.
    pub(crate) fn of_life(length: Duration, scope: Scope) -> Self {
        Self {
            timer: IdleTimer::lifeless(length),
            resets_on: None,
            ..Self::new(length, length, ResetOn::AnyByte, scope)
        }
    }

    /// Makes this a window that only measures, and ends nothing.
    pub(crate) fn observing(mut self) -> Self {
        self.timer = self.timer.observing();
        self.observes = true;
        self
    }

    /// Counts the silence at a `Pending`, and returns the time at which the window passes.
    pub(super) fn pending(
        &mut self,
        run: &Run,
        observer: Option<&Observer>,
        now: Duration,
        task: TaskId,
    ) -> Option<Nanos> {
        self.look_for_content(observer);
        if self.resets_on.is_none() && !observer.is_some_and(Observer::has_heartbeats) {
            // Without a heartbeat so far, the open connection counts as life.
            return None;
        }
        if self.has_notified {
            return None;
        }
        let due = self.timer.wait(run.in_scope(self.scope), now, task)?;
        if self.observes && due <= nanos(now) {
            self.notify(run);
            return None;
        }
        Some(due)
    }

    /// Tells observers, in shadow mode, that the node would have ended.
    #[cold]
    fn notify(&mut self, run: &Run) {
        self.has_notified = true;
        let limit = Some(self.timer.limit());
        run.would_end(self.scope, &TerminalReason::StepTimeout, limit);
    }

    /// Handles a frame that the caller gets.
    #[inline]
    pub(super) fn frame(
        &mut self,
        run: &Run,
        seen: Option<FrameKind>,
        observer: Option<&Observer>,
    ) {
        let resets = match self.resets_on {
            // A comment that a layer here inserted says nothing about the upstream.
            None | Some(ResetOn::AnyByte) => seen != Some(FrameKind::Inserted),
            Some(ResetOn::Content) => seen == Some(FrameKind::Progress),
            Some(ResetOn::Step) => false,
        };
        if resets {
            self.timer.reset();
        } else if self.timer.is_counting() {
            self.timer.interrupt(run.in_scope(self.scope), run.now());
        }
        // The wait that this frame ended had the length that held until now.
        self.look_for_content(observer);
    }

    /// Switches from the first length to the second at the first content.
    #[inline]
    fn look_for_content(&mut self, observer: Option<&Observer>) {
        if !self.has_content && observer.is_some_and(Observer::has_content) {
            self.has_content = true;
            self.timer.set_length(Duration::from_nanos(self.step));
        }
    }

    /// Handles an error of the inner future or body, before the deadlines are checked.
    pub(super) fn failed(&mut self, run: &Run, now: Duration, task: TaskId) {
        self.timer.look(run.in_scope(self.scope), now, task);
    }

    /// Removes the window from its node.
    #[inline]
    pub(super) fn release(&mut self, run: &Run) {
        self.timer.close(run.in_scope(self.scope));
    }
}
