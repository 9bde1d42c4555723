use std::{sync::Arc, time::Duration};

use super::{
    kinds::ResetOn,
    state::NodeState,
    tree::{IdleWindow, Nanos, Node, Paused, TaskId, nanos},
};

/// Measures how long one wrapper has waited without progress.
///
/// The timer is the local half of an [`IdleWindow`], which the wrapper's node holds. Silence lasts
/// from a `Pending` to the event that ends it. The time between a frame and the next `Pending`
/// belongs to the reader, and a pause belongs to the program; the timer subtracts both. The timer
/// stores nanoseconds, because each poll of an answer changes them.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    length: u64,
    /// The silence, in nanoseconds, counted before the current wait.
    silence: u64,
    /// The total of pauses, in nanoseconds, that the timer has subtracted already.
    pauses: Nanos,
    state: IdleState,
    window: Option<Arc<IdleWindow>>,
    resets_on: ResetOn,
    kind: IdleKind,
    /// Whether the timer only measures: then the node has no window and does not end.
    observes: bool,
}

/// The kind of silence that a timer measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleKind {
    /// The time without progress, which a step timeout limits.
    Step,
    /// The time without a sign of life, on a stream that gave such signs before.
    Lifeless,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleState {
    /// The wrapper waits for nothing, and its next wait counts from zero.
    Fresh,
    /// The wrapper waits, and silence began at this time on the tree's clock.
    Since(u64),
    /// The count stopped at this time, and `silence` holds the count before it.
    Stopped(u64),
}

impl IdleTimer {
    #[inline]
    pub(crate) fn new(resets_on: ResetOn, length: Duration) -> Self {
        Self {
            length: nanos(length),
            silence: 0,
            pauses: 0,
            state: IdleState::Fresh,
            window: None,
            resets_on,
            kind: IdleKind::Step,
            observes: false,
        }
    }

    /// Makes this a timer that only measures silence, and ends nothing.
    pub(crate) const fn observing(mut self) -> Self {
        self.observes = true;
        self
    }

    /// The length of silence after which the timer's window passes.
    pub(crate) const fn limit(&self) -> Duration {
        Duration::from_nanos(self.length)
    }

    /// Makes a timer for the time in which a stream gives no sign of life.
    pub(crate) fn lifeless(length: Duration) -> Self {
        Self {
            kind: IdleKind::Lifeless,
            ..Self::new(ResetOn::AnyByte, length)
        }
    }

    #[inline]
    pub(crate) const fn is_counting(&self) -> bool {
        matches!(self.state, IdleState::Since(_))
    }

    /// Sets the length of the window, from the next [`wait`](Self::wait) on.
    pub(crate) fn set_length(&mut self, length: Duration) {
        self.length = nanos(length);
        if !self.is_counting() && self.silence < self.length {
            self.stop_window();
        }
    }

    /// Resets the count of silence after an event that resets the window. Needs no clock.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if self.state != IdleState::Fresh {
            self.silence = 0;
            self.state = IdleState::Fresh;
            self.stop_window();
        }
    }

    /// Stops the count of silence at an event that does not reset the window. Only the first call
    /// after a wait has an effect.
    pub(crate) fn interrupt(&mut self, target: &Node<NodeState>, now: Duration) {
        let paused = self.subtract_pauses(target, nanos(now));
        self.stop(
            target,
            paused.since.map_or(nanos(now), |at| at.min(nanos(now))),
        );
    }

    fn stop(&mut self, target: &Node<NodeState>, at: Nanos) {
        if let IdleState::Since(since) = self.state {
            let since = since.max(self.last(target));
            self.silence = at.saturating_sub(since);
            self.state = IdleState::Stopped(at);
            // A window that has passed keeps running, so that the next check finds it.
            if self.silence < self.length {
                self.stop_window();
            }
        }
    }

    /// Continues the count of silence at a `Pending`, and answers when the window will pass.
    ///
    /// During a pause at, above or below `target` the answer is `None`.
    pub(crate) fn wait(
        &mut self,
        target: &Node<NodeState>,
        now: Duration,
        task: TaskId,
    ) -> Option<Nanos> {
        let paused = self.subtract_pauses(target, nanos(now));
        if let Some(at) = paused.since {
            self.stop(target, at.min(nanos(now)));
            return None;
        }
        let last = self.last(target);
        let since = match self.state {
            IdleState::Since(since) => {
                if let Some(window) = &self.window {
                    window.run(since, self.length, task);
                }
                since
            }
            IdleState::Fresh => self.begin(target, now, task),
            IdleState::Stopped(at) => {
                // Another wrapper made progress while this one did not count.
                if last >= at {
                    self.silence = 0;
                }
                self.begin(target, now, task)
            }
        };
        Some(since.max(last).saturating_add(self.length))
    }

    /// Subtracts the pauses that began and ended since the last poll from the counted silence.
    fn subtract_pauses(&mut self, node: &Node<NodeState>, now: Nanos) -> Paused {
        let paused = node.paused();
        let unseen = paused.total.saturating_sub(self.pauses);
        if let (IdleState::Since(since), 1..) = (self.state, unseen) {
            self.state = IdleState::Since(since.saturating_add(unseen).min(now));
        }
        self.pauses = paused.total;
        paused
    }

    fn begin(&mut self, target: &Node<NodeState>, now: Duration, task: TaskId) -> u64 {
        let since = nanos(now).saturating_sub(self.silence);
        self.state = IdleState::Since(since);
        if self.observes {
            return since;
        }
        let window = self.window.get_or_insert_with(|| {
            let window = Arc::new(match self.kind {
                IdleKind::Step => IdleWindow::new(self.resets_on),
                IdleKind::Lifeless => IdleWindow::lifeless(),
            });
            target.add_window(&window);
            window
        });
        window.run(since, self.length, task);
        since
    }

    fn last(&self, target: &Node<NodeState>) -> u64 {
        target.last(self.resets_on)
    }

    #[inline]
    fn stop_window(&self) {
        if let Some(window) = &self.window {
            window.stop();
        }
    }

    /// Updates the node's window after a failure, so that a check without a wait sees the silence.
    pub(crate) fn look(&mut self, target: &Node<NodeState>, now: Duration, task: TaskId) {
        if self.is_counting() {
            self.wait(target, now, task);
        }
    }

    /// Removes the timer's window from the node.
    #[inline]
    pub(crate) fn close(&mut self, target: &Node<NodeState>) {
        if let Some(window) = self.window.take() {
            target.remove_window(&window);
        }
        self.silence = 0;
        self.state = IdleState::Fresh;
    }
}
