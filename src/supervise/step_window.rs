//! The step window of a layer: how long an upstream may be silent before the node ends.

use std::time::Duration;

use super::observer::Observer;
use crate::run::{IdleTimer, Nanos, ResetOn, Run, Scope, TaskId, TerminalReason, nanos};

/// The step window of one layer for one call, on one node.
#[derive(Debug)]
pub(crate) struct StepWindow {
    timer: IdleTimer,
    /// The window's length in nanoseconds from the response's first content on.
    step: Nanos,
    scope: Scope,
    /// The events that reset the window.
    ///
    /// `None` stands for every byte of the upstream; such a window counts only after the
    /// stream's first heartbeat.
    resets_on: Option<ResetOn>,
    /// Whether the window only observes. If such a window passes, observers get a notice, and the
    /// node goes on.
    observes: bool,
    /// Whether the response has had content, or both lengths of the window are equal.
    has_content: bool,
    /// Whether observers got the notice that the window would have ended the node.
    has_notified: bool,
}

impl StepWindow {
    /// Creates a window that `resets_on` resets; its length is `first` until the first content,
    /// then `step`.
    #[inline]
    pub(crate) fn new(first: Duration, step: Duration, resets_on: ResetOn, scope: Scope) -> Self {
        let has_content = first == step;
        let step = nanos(step);
        let first = if has_content { step } else { nanos(first) };
        Self {
            timer: IdleTimer::new(resets_on, first),
            step,
            scope,
            resets_on: Some(resets_on),
            observes: false,
            has_content,
            has_notified: false,
        }
    }

    /// Creates a window that every byte resets, and that counts after the stream's first
    /// heartbeat.
    pub(crate) fn of_life(length: Duration, scope: Scope) -> Self {
        Self {
            timer: IdleTimer::lifeless(length),
            resets_on: None,
            ..Self::new(length, length, ResetOn::AnyByte, scope)
        }
    }

    /// Sets whether this window only notifies observers, and does not end the node.
    #[inline]
    pub(crate) fn observing(mut self, observes: bool) -> Self {
        self.timer = self.timer.observing(observes);
        self.observes = observes;
        self
    }

    /// The scope of the node that the window is on.
    pub(super) const fn scope(&self) -> Scope {
        self.scope
    }

    /// Whether the window only notifies observers.
    pub(super) const fn observes(&self) -> bool {
        self.observes
    }

    /// Starts or continues the count of silence at a `Pending` of the inner future or body.
    ///
    /// The result is the time at which the window passes unless an event resets it. It is `None`
    /// while nothing can pass: during a pause, after the notice to observers, or before the
    /// heartbeat that a window needs.
    pub(super) fn pending(
        &mut self,
        run: &Run,
        observer: Option<&mut Observer>,
        now: Nanos,
        task: TaskId,
    ) -> Option<Nanos> {
        let observer = observer.map(|observer| {
            observer.wait();
            &*observer
        });
        self.switch_after_content(run, observer);
        if self.resets_on.is_none() && !observer.is_some_and(Observer::has_heartbeats) {
            // Without a heartbeat so far, the open connection counts as life.
            return None;
        }
        if self.has_notified {
            return None;
        }
        let due = self.timer.wait(run.in_scope(self.scope), now, task)?;
        if self.observes && due <= now {
            self.notify(run);
            return None;
        }
        Some(due)
    }

    /// Notifies observers, once, that a window that only observes would have ended the node.
    #[cold]
    fn notify(&mut self, run: &Run) {
        self.has_notified = true;
        let limit = Some(self.timer.limit());
        let node = run.in_scope(self.scope);
        node.would_end(&TerminalReason::StepTimeout, limit);
    }

    /// Resets the count of silence if the frame is an event of `resets_on`. Any other frame stops
    /// the count until the next `Pending`.
    ///
    /// The result says whether the layer must look at the next frame too. It must if content resets
    /// the window, and this frame was none.
    pub(super) fn frame(
        &mut self,
        run: &Run,
        observer: Option<&Observer>,
        is_progress: bool,
    ) -> bool {
        let resets = match self.resets_on {
            None | Some(ResetOn::AnyByte) => true,
            Some(ResetOn::Content) => is_progress,
            Some(ResetOn::Step) => false,
        };
        let target = run.in_scope(self.scope);
        if resets {
            self.timer.reset(target);
        } else if self.timer.is_counting(target) {
            self.interrupt(run, observer);
        } else {
            self.switch_after_content(run, observer);
        }
        !resets && (self.resets_on == Some(ResetOn::Content) || !self.has_content)
    }

    /// Stops the count. Out of line, because most frames find no count to stop.
    #[inline(never)]
    fn interrupt(&mut self, run: &Run, observer: Option<&Observer>) {
        let target = run.in_scope(self.scope);
        self.timer.interrupt(target, run.now());
        // The length changes at once: at the next `Pending` a wrapper further in may check this
        // window's node before this wrapper handles the `Pending`.
        self.switch_after_content(run, observer);
    }

    /// Switches from the first length to `step` once the response has had content. The wait that
    /// the content ended had the first length.
    #[inline]
    fn switch_after_content(&mut self, run: &Run, observer: Option<&Observer>) {
        if !self.has_content && observer.is_some_and(Observer::has_content) {
            self.has_content = true;
            let length = Duration::from_nanos(self.step);
            self.timer.set_length(run.in_scope(self.scope), length);
        }
    }

    /// Counts the silence up to an error of the inner future or body.
    ///
    /// The check of the deadlines comes next, and must see a window that has passed.
    pub(super) fn failed(&mut self, run: &Run, now: Nanos, task: TaskId) {
        self.timer.update(run.in_scope(self.scope), now, task);
    }

    /// Removes the window from its node.
    #[inline]
    pub(crate) fn release(&mut self, run: &Run) {
        self.timer.close(run.in_scope(self.scope));
    }
}
