//! The parts of two layers of one node, in one wrapper.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::{
    layer_hooks::{LayerHooks, LayerPart},
    observer::Observer,
};
use crate::run::{Nanos, PollScope, Run, TaskId};

/// The parts of two layers, such as a step window and a ceiling in shadow mode.
///
/// The outer layer limits time, and reads no response.
#[derive(Debug)]
pub(super) struct TwoParts {
    inner: LayerPart,
    outer: LayerPart,
    /// Whether the inner part needs the next frame.
    needs_frame: bool,
    /// Whether the inner part gets every frame.
    frames: bool,
}

impl TwoParts {
    pub(super) const fn new(inner: LayerPart, outer: LayerPart, frames: bool) -> Self {
        Self {
            inner,
            outer,
            needs_frame: false,
            frames,
        }
    }
}

impl LayerHooks for TwoParts {
    /// Returns the deadline of the inner part. That of the outer one goes to the driver alone: the
    /// wrapper asks whether the answer is whole only when the inner part is due.
    fn pending(
        &mut self,
        run: &Run,
        mut observer: Option<&mut Observer>,
        now: Nanos,
        task: TaskId,
    ) -> Option<Nanos> {
        self.needs_frame = self.inner.measures();
        let due = self.inner.pending(run, observer.as_deref_mut(), now, task);
        let is_due = due.is_some_and(|due| due <= now);
        let is_ended = observer.is_some_and(|observer| {
            (is_due || observer.has_ended(now))
                && observer.is_complete_at(now, self.inner.ends_node())
        });
        if is_ended {
            // The wrapper ends the answer in this poll, so the outer layer sees no `Pending`.
            return due;
        }
        if let Some(due) = self.outer.pending(run, None, now, task) {
            PollScope::lower(due, run);
        }
        due
    }

    fn ends_node(&self) -> bool {
        self.inner.ends_node()
    }

    fn head(&mut self, run: &Run, status: StatusCode, headers: &mut HeaderMap) {
        self.inner.head(run, status, headers);
        self.outer.head(run, status, headers);
    }

    fn frame(&mut self, run: &Run, data: Option<&Bytes>, observer: Option<&Observer>) {
        if self.needs_frame || self.frames {
            self.needs_frame = self.inner.frame(run, data, observer);
        }
        self.outer.frame(run, data, None);
    }

    fn failed(&mut self, run: &Run, now: Nanos, task: TaskId) {
        self.inner.failed(run, now, task);
        self.outer.failed(run, now, task);
    }

    fn release(&mut self, run: &Run) {
        self.inner.release(run);
        self.outer.release(run);
    }
}
