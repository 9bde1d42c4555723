//! A window of silence that a layer holds a node to.

use std::time::Duration;

use super::observer::{FrameKind, Observer};
use crate::run::{IdleTimer, Nanos, ResetOn, Run, Scope, TaskId, TerminalReason, nanos};

/// A window of silence on one node, for one layer of one call.
///
/// The timer is made at the first wait: a response that is ready needs none.
#[derive(Debug)]
pub(crate) struct StepWindow {
    /// The length until the first content.
    first: Nanos,
    /// The length from the first content on.
    step: Nanos,
    timer: Option<Box<IdleTimer>>,
    kind: WindowKind,
    scope: Scope,
    /// Whether the window only measures: then observers get a notice, and the node goes on.
    observes: bool,
    /// Whether the response has had content.
    has_content: bool,
    /// Whether observers got their notice that the node would have ended.
    has_notified: bool,
}

/// The events that reset a window.
#[derive(Clone, Copy, Debug)]
enum WindowKind {
    Step(ResetOn),
    /// Every byte, from the stream's first heartbeat on.
    Life,
}

impl StepWindow {
    /// Makes a window on progress: `first` until the first content, then `step`.
    #[inline]
    pub(crate) fn new(first: Duration, step: Duration, resets_on: ResetOn, scope: Scope) -> Self {
        Self {
            first: nanos(first),
            step: nanos(step),
            timer: None,
            kind: WindowKind::Step(resets_on),
            scope,
            observes: false,
            has_content: false,
            has_notified: false,
        }
    }

    /// Makes a window on signs of life, for a stream that has sent a heartbeat.
    pub(crate) fn of_life(length: Duration, scope: Scope) -> Self {
        Self {
            kind: WindowKind::Life,
            ..Self::new(length, length, ResetOn::AnyByte, scope)
        }
    }

    /// Makes this a window that only measures, and ends nothing.
    pub(crate) const fn observing(mut self, observes: bool) -> Self {
        self.observes = observes;
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
        let is_of_life = matches!(self.kind, WindowKind::Life);
        if is_of_life && !observer.is_some_and(Observer::has_heartbeats) {
            // Without a heartbeat so far, the open connection counts as life.
            return None;
        }
        if self.has_notified {
            return None;
        }
        let scope = self.scope;
        let due = self.timer().wait(run.in_scope(scope), now, task)?;
        if self.observes && due <= nanos(now) {
            self.notify(run);
            return None;
        }
        Some(due)
    }

    fn timer(&mut self) -> &mut IdleTimer {
        let length = if self.has_content {
            self.step
        } else {
            self.first
        };
        let (kind, observes) = (self.kind, self.observes);
        self.timer.get_or_insert_with(|| {
            let length = Duration::from_nanos(length);
            let timer = match kind {
                WindowKind::Step(resets_on) => IdleTimer::new(resets_on, length),
                WindowKind::Life => IdleTimer::lifeless(length),
            };
            Box::new(if observes { timer.observing() } else { timer })
        })
    }

    /// Tells observers, in shadow mode, that the node would have ended.
    #[cold]
    fn notify(&mut self, run: &Run) {
        self.has_notified = true;
        let limit = self.timer.as_ref().map(|timer| timer.limit());
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
        if let Some(timer) = &mut self.timer {
            let resets = match self.kind {
                // A comment that a layer here inserted says nothing about the upstream.
                WindowKind::Life | WindowKind::Step(ResetOn::AnyByte) => {
                    seen != Some(FrameKind::Inserted)
                }
                WindowKind::Step(ResetOn::Content) => seen == Some(FrameKind::Progress),
                WindowKind::Step(ResetOn::Step) => false,
            };
            if resets {
                timer.reset();
            } else if timer.is_counting() {
                timer.interrupt(run.in_scope(self.scope), run.now());
            }
        }
        // The wait that this frame ended had the length that held until now.
        self.look_for_content(observer);
    }

    /// Switches from the first length to the second at the first content.
    #[inline]
    fn look_for_content(&mut self, observer: Option<&Observer>) {
        if !self.has_content && observer.is_some_and(Observer::has_content) {
            self.has_content = true;
            if let (Some(timer), true) = (&mut self.timer, self.first != self.step) {
                timer.set_length(Duration::from_nanos(self.step));
            }
        }
    }

    /// Handles an error of the inner future or body, before the deadlines are checked.
    pub(super) fn failed(&mut self, run: &Run, now: Duration, task: TaskId) {
        if let Some(timer) = &mut self.timer {
            timer.look(run.in_scope(self.scope), now, task);
        }
    }

    /// Removes the window from its node.
    #[inline]
    pub(super) fn release(&mut self, run: &Run) {
        if let Some(timer) = &mut self.timer {
            timer.close(run.in_scope(self.scope));
        }
    }
}
