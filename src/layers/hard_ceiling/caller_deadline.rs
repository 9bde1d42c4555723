use std::{sync::Arc, time::Duration};

use http::HeaderMap;

use super::caller_headers::CallerLimits;
use crate::{
    run::{Announcement, IdleWindow, Nanos, NodeKind, Run, TaskId, nanos},
    supervise::names_events,
};

/// Holds one call to what its caller announced.
#[derive(Debug)]
pub(super) struct CallerDeadline {
    call: Run,
    announced: CallerLimits,
    /// What of it stands on the call.
    standing: Option<Announcement>,
    /// From the head on.
    silence: Option<Unheard>,
}

/// How long nothing was handed to the caller.
#[derive(Debug)]
struct Unheard {
    longest: Nanos,
    /// Since when the upstream is waited for: what passes between a frame and
    /// the next `Pending` is the caller's own time.
    since: Option<Nanos>,
    window: Option<Arc<IdleWindow>>,
}

/// The call that `found` is, or is a try of.
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
            standing: None,
            silence: None,
        };
        caller.stand(announced.until_the_head());
        caller
    }

    /// Replaces what stands on the call.
    fn stand(&mut self, limit: Option<Duration>) {
        let clocks = &self.call.node().clocks;
        if let Some(standing) = self.standing.take() {
            clocks.withdraw(standing);
        }
        let at = limit.map(|limit| self.call.node().opened().saturating_add(limit));
        self.standing = at.map(|at| clocks.announce(at));
        if self.standing.is_some() {
            self.call.node().tightened();
        }
    }

    /// The head is handed on.
    pub(super) fn answered(&mut self, headers: &HeaderMap) {
        if self.call.is_of_many() {
            self.release();
            return;
        }
        self.stand(self.announced.after_the_head(names_events(headers)));
        self.silence = self.announced.silence.map(|longest| Unheard {
            longest: nanos(longest),
            since: None,
            window: None,
        });
    }

    /// When to look again.
    pub(super) fn pending(&mut self, now: Duration, task: TaskId) -> Option<Nanos> {
        if self.call.is_of_many() {
            // A layer further in has made the run of this call one of many.
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

    /// What is waited for has failed, and the clocks are looked at by `task`.
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
        self.stand(None);
        let window = self.silence.take().and_then(|silence| silence.window);
        if let Some(window) = window {
            self.call.node().remove_window(&window);
        }
    }
}

impl Unheard {
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
