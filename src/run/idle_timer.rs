use std::{sync::Arc, time::Duration};

use super::{
    state::NodeState,
    step::ResetOn,
    tree::{IdleState, IdleWindow, Nanos, Node, TaskId, WindowKind, nanos},
};

/// How late the first look at a window that has passed must come before the window gets a grace.
///
/// A timer wakes its task a millisecond late, or a few under load.
const LATE: Nanos = 10_000_000;

/// The bounds of a grace, which is as long as the look was late: for so long the process or its
/// thread did not run. What the upstream sent meanwhile may be readable, but the runtime may poll
/// this task before it has read the socket, and after a long stop it has many sockets to read.
const GRACE: [Nanos; 2] = [50_000_000, 200_000_000];

/// Measures how long one wrapper has waited without progress.
///
/// The timer starts and stops an [`IdleWindow`], which a check of the node reads, unless the timer
/// only measures. The timer counts the time from a `Pending` to the next event. The time from a
/// frame to the next `Pending`, which the reader of the answer takes, does not count, nor does the
/// time of pauses. The count is stored in the window.
///
/// A window that is first found some time after it has passed runs on for a grace, once for each
/// silence.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    length: Nanos,
    /// The timer's own window. `None` before the first wait, after the timer is closed, and if the
    /// timer has taken the node's inline window.
    window: Option<Arc<IdleWindow>>,
    /// Whether the timer has taken the node's inline window.
    in_node: bool,
    resets_on: ResetOn,
    /// The kind of the window: a step timeout, or the time without a byte or heartbeat.
    kind: WindowKind,
    /// Whether the timer only measures silence. Then the window is not added to the node, and a
    /// check of the node never ends the node for it.
    observes: bool,
}

impl IdleTimer {
    #[inline]
    pub(crate) const fn new(resets_on: ResetOn, length: Nanos) -> Self {
        Self {
            length,
            window: None,
            in_node: false,
            resets_on,
            kind: WindowKind::Step(resets_on),
            observes: false,
        }
    }

    /// Sets whether this timer only measures silence, and ends nothing.
    #[inline]
    pub(crate) const fn observing(mut self, observes: bool) -> Self {
        self.observes = observes;
        self
    }

    /// The length of silence after which the timer's window passes.
    pub(crate) const fn limit(&self) -> Duration {
        Duration::from_nanos(self.length)
    }

    /// Makes a timer for the time without a byte or heartbeat, on a stream that sent heartbeats.
    pub(crate) fn lifeless(length: Duration) -> Self {
        Self {
            kind: WindowKind::Lifeless,
            ..Self::new(ResetOn::AnyByte, nanos(length))
        }
    }

    #[inline]
    pub(crate) fn is_counting(&self, target: &Node<NodeState>) -> bool {
        self.window(target).is_some_and(is_counting)
    }

    #[inline]
    fn window<'a>(&'a self, target: &'a Node<NodeState>) -> Option<&'a IdleWindow> {
        if self.in_node {
            return target.clocks.own_window();
        }
        self.window.as_deref()
    }

    /// Takes the node's inline window, at the first wait. If another timer has taken that one, the
    /// method adds a window to the node. The window of a timer that only measures stays outside of
    /// the node.
    #[inline(never)]
    fn open(&mut self, target: &Node<NodeState>) {
        if !self.observes && target.clocks.take_window(self.kind) {
            self.in_node = true;
            return;
        }
        let window = self.window.insert(Arc::new(IdleWindow::new(self.kind)));
        if !self.observes {
            target.add_window(window);
        }
    }

    /// Sets the length of the window, from the next [`wait`](Self::wait) on.
    ///
    /// While the count is stopped, a window that has passed the old length still runs. If that
    /// window has not passed the new length, it stops, so that no check finds it passed.
    pub(crate) fn set_length(&mut self, target: &Node<NodeState>, length: Duration) {
        self.length = nanos(length);
        if let Some(window) = self.window(target) {
            if !is_counting(window) && window.count.silence() < self.length {
                window.stop();
            }
        }
    }

    /// Sets the count of silence to zero and stops the window, at an event that resets it.
    /// The method reads no clock: the next wait starts the count.
    #[inline]
    pub(crate) fn reset(&mut self, target: &Node<NodeState>) {
        if let Some(window) = self.window(target) {
            if window.count.state() != IdleState::Fresh {
                window.count.set_silence(0);
                window.count.set_graced(false);
                window.count.set_state(IdleState::Fresh);
                window.stop();
            }
        }
    }

    /// Stops the count of silence at an event that does not reset the window. The next wait
    /// continues the count, unless the node has recorded a sign of life since that resets the
    /// window. A count that is stopped already stays as it is.
    pub(crate) fn interrupt(&mut self, target: &Node<NodeState>, now: Duration) {
        if let Some(window) = self.window(target) {
            let (paused, now) = (target.paused(), nanos(now));
            window.count.subtract_pauses(paused.total, now);
            let at = paused.since.map_or(now, |at| at.min(now));
            stop(window, self.length, target.last(self.resets_on), at);
        }
    }

    /// Starts or continues the count of silence at a `Pending`. Returns the time at which the
    /// window passes.
    ///
    /// During a pause at, above or below `target` the count stops, and the result is `None`.
    pub(crate) fn wait(
        &mut self,
        target: &Node<NodeState>,
        now: Nanos,
        task: TaskId,
    ) -> Option<Nanos> {
        if !self.in_node && self.window.is_none() {
            self.open(target);
        }
        let window = self.window(target)?;
        let paused = target.paused();
        window.count.subtract_pauses(paused.total, now);
        let last = target.last(self.resets_on);
        if let Some(at) = paused.since {
            stop(window, self.length, last, at.min(now));
            return None;
        }
        let mut since = match window.count.state() {
            IdleState::Since(since) => since,
            // A sign of life was recorded while this count was stopped, so the count starts anew.
            IdleState::Stopped(at) if last >= at => {
                window.count.set_graced(false);
                now
            }
            _ => now.saturating_sub(window.count.silence()),
        };
        let mut due = since.max(last).saturating_add(self.length);
        if now > due {
            if let Some(later) = self.grace(window, now - due, last > since) {
                due = now.saturating_add(later);
                since = due.saturating_sub(self.length);
            }
        }
        window.count.set_state(IdleState::Since(since));
        if !self.observes {
            window.run(since, self.length, task);
        }
        Some(due)
    }

    /// How much longer a window runs that is found `late`; `None` if it runs no longer. `is_new` says
    /// that a sign of life began another silence.
    #[cold]
    fn grace(&self, window: &IdleWindow, late: Nanos, is_new: bool) -> Option<Nanos> {
        if late < LATE || !is_new && window.count.is_graced() {
            return None;
        }
        window.count.set_graced(true);
        let [shortest, longest] = GRACE;
        Some(late.clamp(shortest, longest).min(self.length))
    }

    /// Updates a running window when the inner service or body fails. So the check that follows
    /// finds a window that has passed, though this poll is not `Pending`.
    pub(crate) fn update(&mut self, target: &Node<NodeState>, now: Nanos, task: TaskId) {
        if self.is_counting(target) {
            self.wait(target, now, task);
        }
    }

    /// Gives the node's inline window back, or removes the window that the timer has added to the
    /// node.
    #[inline]
    pub(crate) fn close(&mut self, target: &Node<NodeState>) {
        if std::mem::take(&mut self.in_node) {
            target.clocks.give_window_back();
        } else if let Some(window) = self.window.take() {
            if !self.observes {
                target.remove_window(&window);
            }
        }
    }
}

#[inline]
fn is_counting(window: &IdleWindow) -> bool {
    matches!(window.count.state(), IdleState::Since(_))
}

/// Stops the count of silence at the time `at`, if the count runs. `last` is the time of the last
/// sign of life on the node that resets the window.
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
