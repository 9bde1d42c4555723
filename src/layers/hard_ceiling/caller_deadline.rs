use std::{sync::Arc, time::Duration};

use http::HeaderMap;

use super::caller_headers::CallerLimits;
use crate::{
    headers::names_events,
    run::{Announcement, IdleWindow, Nanos, NodeKind, Run, TaskId, nanos},
};

/// Holds one call to the limits that its caller announced.
#[derive(Debug)]
pub(super) struct CallerDeadline {
    call: Run,
    announced: CallerLimits,
    /// The absolute deadline that is set on the call's clocks.
    deadline: Option<Announcement>,
    /// The limit on the silence of the body, from the head on.
    silence: Option<SilenceLimit>,
}

/// Limits the time in which the caller gets no byte.
#[derive(Debug)]
struct SilenceLimit {
    longest: Nanos,
    /// The time of the first `Pending` after a frame; until then the time is the caller's own.
    since: Option<Nanos>,
    window: Option<Arc<IdleWindow>>,
}

/// The call of a node: the node itself, or the call that it is an attempt of.
fn call_of(found: &Run) -> Run {
    let mut node = found.clone();
    while let (NodeKind::Attempt, Some(above)) = (node.kind(), node.parent()) {
        node = above;
    }
    if node.is_of_many() {
        return found.clone();
    }
    node
}

impl CallerDeadline {
    pub(super) fn new(announced: CallerLimits, found: &Run) -> Self {
        let mut caller = Self {
            call: call_of(found),
            announced,
            deadline: None,
            silence: None,
        };
        caller.set_deadline(announced.until_the_head());
        caller
    }

    /// Replaces the deadline on the call's clocks by `limit`, counted from the call's opening.
    fn set_deadline(&mut self, limit: Option<Duration>) {
        let clocks = &self.call.node().clocks;
        if let Some(deadline) = self.deadline.take() {
            clocks.withdraw(deadline);
        }
        let at = limit.map(|limit| self.call.node().opened().saturating_add(limit));
        self.deadline = at.map(|at| clocks.announce(at));
        if self.deadline.is_some() {
            self.call.node().tightened();
        }
    }

    /// Replaces the limits of the head by those of the body, as the head is handed on.
    pub(super) fn answered(&mut self, headers: &HeaderMap) {
        if self.call.is_of_many() {
            self.release();
            return;
        }
        self.set_deadline(self.announced.after_the_head(names_events(headers)));
        self.silence = self.announced.silence.map(|longest| SilenceLimit {
            longest: nanos(longest),
            since: None,
            window: None,
        });
    }

    /// The time of the call's next deadline, at a pending poll.
    pub(super) fn pending(&mut self, now: Duration, task: TaskId) -> Option<Nanos> {
        if self.call.is_of_many() {
            // A layer further in has turned the run of this one call into a run of many.
            self.release();
            return None;
        }
        let silence = self.silence.as_mut();
        let silent = silence.map(|silence| silence.wait(&self.call, now, task));
        silent
            .into_iter()
            .chain(self.call.node().clocks.next())
            .min()
    }

    #[inline]
    pub(super) fn frame(&mut self) {
        if let Some(silence) = &mut self.silence {
            silence.reset();
        }
    }

    /// Notes that the inner service or body failed, and that `task` compares the clocks next.
    pub(super) fn failed(&self, task: TaskId) {
        let window = self
            .silence
            .as_ref()
            .and_then(|silence| silence.window.as_ref());
        if let Some(window) = window {
            window.set_task(task);
        }
    }

    pub(super) fn release(&mut self) {
        self.set_deadline(None);
        let window = self.silence.take().and_then(|silence| silence.window);
        if let Some(window) = window {
            self.call.node().remove_window(&window);
        }
    }
}

impl SilenceLimit {
    fn wait(&mut self, call: &Run, now: Duration, task: TaskId) -> Nanos {
        let since = *self.since.get_or_insert(nanos(now));
        let window = self.window.get_or_insert_with(|| {
            let window = Arc::new(IdleWindow::callers());
            call.node().add_window(&window);
            window
        });
        window.run(since, self.longest, task);
        since.saturating_add(self.longest)
    }

    #[inline]
    fn reset(&mut self) {
        if self.since.take().is_some() {
            if let Some(window) = &self.window {
                window.stop();
            }
        }
    }
}
