use std::{sync::Arc, time::Duration};

use super::{
    ResetOn, Run, TerminalReason,
    core::{TaskId, Window},
};

/// Measures how long one wrapper has waited in vain: the local half of a
/// [`Window`], which the wrapper's node holds.
///
/// Silence is counted from a `Pending` to whatever ends it. What passes between
/// a frame and the next `Pending` is the reader's time, and what passes during
/// a pause is somebody else's; both are taken out.
#[derive(Debug)]
pub(crate) struct Silence {
    resets_on: ResetOn,
    length: Duration,
    /// Silence counted before the current wait.
    kept: Duration,
    state: State,
    window: Option<(Arc<Window>, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing is waited for, and what comes next counts afresh.
    Fresh,
    /// Waiting, with silence counted from there.
    Since(Duration),
    /// Interrupted at that time, `kept` holding what was counted.
    Stopped(Duration),
}

impl Silence {
    pub(crate) const fn new(resets_on: ResetOn, length: Duration) -> Self {
        Self {
            resets_on,
            length,
            kept: Duration::ZERO,
            state: State::Fresh,
            window: None,
        }
    }

    pub(crate) const fn resets_on(&self) -> ResetOn {
        self.resets_on
    }

    pub(crate) const fn is_counting(&self) -> bool {
        matches!(self.state, State::Since(_))
    }

    /// The length from the next [`wait`](Self::wait) on.
    pub(crate) const fn set_length(&mut self, length: Duration) {
        self.length = length;
    }

    /// Something came that resets the window: no clock is needed.
    pub(crate) fn reset(&mut self) {
        self.kept = Duration::ZERO;
        if self.state != State::Fresh {
            self.state = State::Fresh;
            self.stop_window();
        }
    }

    /// Something came that does not reset the window, or a pause began: what
    /// was counted is kept. Only the first call after a wait matters.
    pub(crate) fn interrupt(&mut self, target: &Run, now: Duration) {
        if let State::Since(since) = self.state {
            let since = since.max(target.node().last(self.resets_on));
            self.kept = now.saturating_sub(since);
            self.state = State::Stopped(now);
            self.stop_window();
        }
    }

    /// Goes on counting at a `Pending`; answers when the window will pass, or
    /// none during a pause at, above or below `found`.
    pub(crate) fn wait(
        &mut self,
        found: &Run,
        target: &Run,
        now: Duration,
        task: TaskId,
    ) -> Option<Duration> {
        if found.node().is_paused() {
            self.interrupt(target, now);
            return None;
        }
        let since = match self.state {
            State::Since(since) => {
                if let Some((window, _)) = &self.window {
                    window.set_task(task);
                }
                since
            }
            State::Fresh => self.begin(target, now, task),
            State::Stopped(at) => {
                // Progress elsewhere, while this wrapper was not counting.
                if target.node().last(self.resets_on) > at {
                    self.kept = Duration::ZERO;
                }
                self.begin(target, now, task)
            }
        };
        let since = since.max(target.node().last(self.resets_on));
        Some(since.saturating_add(self.length))
    }

    fn begin(&mut self, target: &Run, now: Duration, task: TaskId) -> Duration {
        let since = now.saturating_sub(self.kept);
        self.state = State::Since(since);
        let (window, _) = self.window.get_or_insert_with(|| {
            let window = Arc::new(Window::new(self.resets_on));
            let key = target.node().add_window(Arc::clone(&window));
            (window, key)
        });
        window.run(since, self.length, task);
        since
    }

    fn stop_window(&self) {
        if let Some((window, _)) = &self.window {
            window.stop();
        }
    }

    /// Ends `target` if the window has passed at `now`: for an error that comes
    /// in the very poll in which it does.
    pub(crate) fn expire(&self, target: &Run, now: Duration) {
        if let State::Since(since) = self.state {
            let since = since.max(target.node().last(self.resets_on));
            if since.saturating_add(self.length) <= now {
                let reason = TerminalReason::StepTimeout;
                drop(target.node().end(reason, Some(self.length), now));
            }
        }
    }

    /// Gives the window back to the node.
    pub(crate) fn close(&mut self, target: &Run) {
        if let Some((_, key)) = self.window.take() {
            target.node().remove_window(key);
        }
        self.state = State::Fresh;
    }
}
