use std::{sync::Arc, time::Duration};

use super::{
    kinds::ResetOn,
    state::NodeState,
    tree::{IdleWindow, Nanos, Node, Paused, TaskId, nanos},
};

/// Measures how long one wrapper has waited in vain: the local half of a
/// [`IdleWindow`], which the wrapper's node holds.
///
/// Silence is counted from a `Pending` to whatever ends it. What passes between
/// a frame and the next `Pending` is the reader's time, and what passes during
/// a pause is somebody else's; both are taken out.
///
/// Times are kept in nanoseconds: this moves with every answer.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    length: u64,
    /// Silence counted before the current wait.
    kept: u64,
    /// The pauses that are taken out already.
    taken: Nanos,
    state: IdleState,
    window: Option<Arc<IdleWindow>>,
    resets_on: ResetOn,
    kind: IdleKind,
    /// The node is not told: it does not end of it.
    observes: bool,
}

/// What silence is, and what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleKind {
    /// Nothing was progress: the node may end of it.
    Step,
    /// A stream that gave signs of life gives none.
    Lifeless,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdleState {
    /// Nothing is waited for, and what comes next counts afresh.
    Fresh,
    /// Waiting, with silence counted from there.
    Since(u64),
    /// Interrupted at that time, `kept` holding what was counted.
    Stopped(u64),
}

impl IdleTimer {
    #[inline]
    pub(crate) fn new(resets_on: ResetOn, length: Duration) -> Self {
        Self {
            length: nanos(length),
            kept: 0,
            taken: 0,
            state: IdleState::Fresh,
            window: None,
            resets_on,
            kind: IdleKind::Step,
            observes: false,
        }
    }

    /// Measures as before, and ends nothing.
    pub(crate) const fn observing(mut self) -> Self {
        self.observes = true;
        self
    }

    #[inline]
    pub(crate) const fn observes(&self) -> bool {
        self.observes
    }

    /// How long it may last.
    pub(crate) const fn limit(&self) -> Duration {
        Duration::from_nanos(self.length)
    }

    /// Measures how long a stream gives no sign of life.
    pub(crate) fn lifeless(length: Duration) -> Self {
        Self {
            kind: IdleKind::Lifeless,
            ..Self::new(ResetOn::AnyByte, length)
        }
    }

    #[inline]
    pub(crate) const fn is_of_life(&self) -> bool {
        matches!(self.kind, IdleKind::Lifeless)
    }

    #[inline]
    pub(crate) const fn resets_on(&self) -> ResetOn {
        self.resets_on
    }

    #[inline]
    pub(crate) const fn is_counting(&self) -> bool {
        matches!(self.state, IdleState::Since(_))
    }

    /// The length from the next [`wait`](Self::wait) on.
    pub(crate) fn set_length(&mut self, length: Duration) {
        self.length = nanos(length);
        if !self.is_counting() && self.kept < self.length {
            self.stop_window();
        }
    }

    /// Something came that resets the window: no clock is needed.
    #[inline]
    pub(crate) fn reset(&mut self) {
        if self.state != IdleState::Fresh {
            self.kept = 0;
            self.state = IdleState::Fresh;
            self.stop_window();
        }
    }

    /// Something came that does not reset the window: what was counted is kept.
    /// Only the first call after a wait matters.
    pub(crate) fn interrupt(&mut self, target: &Node<NodeState>, now: Duration) {
        let paused = self.take_pauses(target, nanos(now));
        self.stop(
            target,
            paused.since.map_or(nanos(now), |at| at.min(nanos(now))),
        );
    }

    fn stop(&mut self, target: &Node<NodeState>, at: Nanos) {
        if let IdleState::Since(since) = self.state {
            let since = since.max(self.last(target));
            self.kept = at.saturating_sub(since);
            self.state = IdleState::Stopped(at);
            // One that has passed already stays so, whoever looks next.
            if self.kept < self.length {
                self.stop_window();
            }
        }
    }

    /// Goes on counting at a `Pending`; answers when the window will pass, or
    /// none during a pause at, above or below `target`.
    pub(crate) fn wait(
        &mut self,
        target: &Node<NodeState>,
        now: Duration,
        task: TaskId,
    ) -> Option<Nanos> {
        let paused = self.take_pauses(target, nanos(now));
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
                // Progress elsewhere, while this wrapper was not counting.
                if last >= at {
                    self.kept = 0;
                }
                self.begin(target, now, task)
            }
        };
        Some(since.max(last).saturating_add(self.length))
    }

    /// Takes out pauses that began and ended since the last look, without a
    /// poll that saw them.
    fn take_pauses(&mut self, node: &Node<NodeState>, now: Nanos) -> Paused {
        let paused = node.paused();
        let unseen = paused.total.saturating_sub(self.taken);
        if let (IdleState::Since(since), 1..) = (self.state, unseen) {
            self.state = IdleState::Since(since.saturating_add(unseen).min(now));
        }
        self.taken = paused.total;
        paused
    }

    fn begin(&mut self, target: &Node<NodeState>, now: Duration, task: TaskId) -> u64 {
        let since = nanos(now).saturating_sub(self.kept);
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

    /// Brings the node's window up to date, for a check that follows without a
    /// wait: what is waited for has failed.
    pub(crate) fn look(&mut self, target: &Node<NodeState>, now: Duration, task: TaskId) {
        if self.is_counting() {
            self.wait(target, now, task);
        }
    }

    /// Gives the window back to the node.
    #[inline]
    pub(crate) fn close(&mut self, target: &Node<NodeState>) {
        if let Some(window) = self.window.take() {
            target.remove_window(&window);
        }
        self.kept = 0;
        self.state = IdleState::Fresh;
    }
}
