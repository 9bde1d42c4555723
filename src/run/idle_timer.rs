use std::{sync::Arc, time::Duration};

use super::{
    kinds::ResetOn,
    state::NodeState,
    tree::{IdleState, IdleWindow, Nanos, Node, TaskId, nanos},
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
    /// The window, from the first wait on; the count of silence is in it.
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

impl IdleTimer {
    #[inline]
    pub(crate) fn new(resets_on: ResetOn, length: Duration) -> Self {
        Self {
            length: nanos(length),
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
    pub(crate) fn is_counting(&self) -> bool {
        matches!(self.state(), IdleState::Since(_))
    }

    #[inline]
    fn state(&self) -> IdleState {
        let window = self.window.as_ref();
        window.map_or(IdleState::Fresh, |window| window.count.state())
    }

    /// Sets the length of the window, from the next [`wait`](Self::wait) on.
    pub(crate) fn set_length(&mut self, length: Duration) {
        self.length = nanos(length);
        if let Some(window) = &self.window {
            if !self.is_counting() && window.count.silence() < self.length {
                window.stop();
            }
        }
    }

    /// Resets the count of silence after an event that resets the window. Needs no clock.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if let Some(window) = &self.window {
            if window.count.state() != IdleState::Fresh {
                window.count.set_silence(0);
                window.count.set_state(IdleState::Fresh);
                window.stop();
            }
        }
    }

    /// Stops the count of silence at an event that does not reset the window. Only the first call
    /// after a wait has an effect.
    pub(crate) fn interrupt(&mut self, target: &Node<NodeState>, now: Duration) {
        if let Some(window) = &self.window {
            let (paused, now) = (target.paused(), nanos(now));
            window.count.subtract_pauses(paused.total, now);
            let at = paused.since.map_or(now, |at| at.min(now));
            stop(window, self.length, target.last(self.resets_on), at);
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
        let window = self.window.get_or_insert_with(|| {
            Arc::new(match self.kind {
                IdleKind::Step => IdleWindow::new(self.resets_on),
                IdleKind::Lifeless => IdleWindow::lifeless(),
            })
        });
        let (paused, now) = (target.paused(), nanos(now));
        window.count.subtract_pauses(paused.total, now);
        let last = target.last(self.resets_on);
        if let Some(at) = paused.since {
            stop(window, self.length, last, at.min(now));
            return None;
        }
        let since = match window.count.state() {
            IdleState::Since(since) => since,
            // Another wrapper made progress while this one did not count.
            IdleState::Stopped(at) if last >= at => now,
            _ => now.saturating_sub(window.count.silence()),
        };
        window.count.set_state(IdleState::Since(since));
        if !self.observes {
            if !window.is_kept() {
                target.add_window(window);
            }
            window.run(since, self.length, task);
        }
        Some(since.max(last).saturating_add(self.length))
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
            if window.is_kept() {
                target.remove_window(&window);
            }
        }
    }
}

/// Stops the count of a window that runs; `last` is the last sign on its node that resets it.
fn stop(window: &IdleWindow, length: Nanos, last: Nanos, at: Nanos) {
    if let IdleState::Since(since) = window.count.state() {
        let silence = at.saturating_sub(since.max(last));
        window.count.set_silence(silence);
        window.count.set_state(IdleState::Stopped(at));
        // A window that has passed keeps running, so that the next check finds it.
        if silence < length {
            window.stop();
        }
    }
}
