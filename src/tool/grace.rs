use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    run::{PollScope, Run, nanos},
    supervise::TaskTimer,
};

/// How long a tool may go on once something above it has ended.
#[derive(Debug)]
pub(crate) struct Grace {
    length: Duration,
    /// Whether the tool has begun: one that has not needs no time to clean up.
    begun: bool,
}

impl Grace {
    pub(crate) const fn new(length: Duration) -> Self {
        Self {
            length,
            begun: false,
        }
    }

    /// The tool is polled, unless it is over.
    pub(crate) fn begin(&mut self, tool: &Run) {
        self.begun |= !tool.node().is_over();
    }

    /// `tool` is over. Goes on with its future: ready once that is, or once the
    /// time is up, counted from the end.
    pub(crate) fn poll<F: Future>(
        &self,
        drive: &mut TaskTimer,
        tool: &Run,
        future: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let node = tool.node();
        // What ended the tool itself is its own time being up.
        let end = node.nearest_end().filter(|end| end.origin != node.number());
        let Some(end) = end.filter(|_| self.begun) else {
            return Poll::Ready(());
        };
        let until = end.at.saturating_add(self.length);
        let turn = PollScope::enter(cx.waker(), tool);
        if future.poll(cx).is_ready() || tool.at(turn.now()) >= until {
            return Poll::Ready(());
        }
        drive.wait(&turn, tool, Some(nanos(until)), cx);
        Poll::Pending
    }
}
