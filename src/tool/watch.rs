//! The future of a tool: supervised, with a window and a grace period.

use std::{
    borrow::Cow,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::{Tool, ToolAction};
use crate::{
    llm::digest,
    run::{
        ErrorKey, IdleTimer, NodeKind, PollScope, ResetOn, Run, Step, StepKind, TerminalReason,
        Terminated, WorkingNotices, nanos,
    },
    supervise::{TaskTimer, poll_until_end_and},
};

pin_project! {
    /// The execution of a tool: [`Tool::watch`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Watch<F> {
        #[pin]
        future: Option<F>,
        pub(crate) node: Run,
        pub(crate) name: Cow<'static, str>,
        action: Option<ToolAction>,
        drive: TaskTimer,
        // Boxed: most runs ask for no notices.
        working: Option<Box<WorkingNotices>>,
        grace: Option<Grace>,
        silence: Option<IdleTimer>,
        settled: bool,
    }

    impl<F> PinnedDrop for Watch<F> {
        fn drop(this: Pin<&mut Self>) {
            // The tool first, so that its node's end says that it is gone.
            this.finish(TerminalReason::Aborted);
        }
    }
}

impl<F> Watch<F> {
    pub(crate) fn new(tool: Tool, future: F) -> Self {
        // A deadline that has come is stored here; the tool inherits it.
        drop(tool.run.check());
        let node = tool.run.open_below(NodeKind::Tool);
        node.node().enter();
        if node.terminal_reason().is_none() {
            let step = Step::new(StepKind::ToolExecution);
            node.note(step.detail(tool.name.clone()));
        } else {
            tool.run.refuse_tool(&tool.name);
        }
        Self {
            future: Some(future),
            node,
            name: tool.name,
            action: tool.action,
            drive: TaskTimer::default(),
            working: tool
                .run
                .asked_notices()
                .and_then(WorkingNotices::new)
                .map(Box::new),
            grace: tool.grace.map(Grace::new),
            silence: tool
                .window
                .map(|window| IdleTimer::new(ResetOn::Step, window)),
            settled: false,
        }
    }

    fn finish(self: Pin<&mut Self>, reason: TerminalReason) {
        let mut this = self.project();
        this.future.set(None);
        this.drive.release(this.node);
        if let Some(silence) = this.silence {
            silence.close(this.node.node());
        }
        if !std::mem::replace(this.settled, true) {
            if reason != TerminalReason::Aborted && this.node.terminal_reason().is_none() {
                let step = Step::new(StepKind::ToolComplete);
                this.node.note(step.detail(this.name.clone()));
            }
            this.node.settle(reason);
        }
    }

    /// It has done what it was to do; its node is settled.
    pub(crate) fn done(self: Pin<&mut Self>, result: impl FnOnce() -> Option<u64>) {
        let this = self.project();
        if let Some(action) = this.action.take() {
            action.record(this.node, this.name, result());
        }
    }

    pub(crate) fn poll_with<T>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        judge: impl FnOnce(&T) -> TerminalReason,
    ) -> Poll<Result<T, Box<Terminated>>>
    where
        F: Future<Output = T>,
    {
        let this = self.as_mut().project();
        let Some(mut future) = this.future.as_pin_mut() else {
            return Poll::Ready(Err(Box::new(this.node.to_terminated())));
        };
        if let Some(grace) = this.grace {
            grace.begin(this.node);
        }
        let (node, name, working) = (&*this.node, this.name, this.working);
        let tell = |now| {
            let step = || Step::new(StepKind::ToolExecution).detail(name.clone());
            node.tell_working(working.as_mut()?, now, step)
        };
        match ready!(poll_until_end_and(
            this.drive,
            node,
            this.silence.as_mut(),
            tell,
            future.as_mut(),
            cx
        )) {
            Ok(output) => {
                let reason = judge(&output);
                self.finish(reason);
                Poll::Ready(Ok(output))
            }
            Err(terminated) => {
                if let Some(grace) = this.grace {
                    ready!(grace.poll(this.drive, node, future, cx));
                }
                self.as_mut().finish(terminated.reason.clone());
                // Its own window is an error of it, the end of the run none.
                let watch = self.as_mut().project();
                let own = terminated.kind == NodeKind::Tool && terminated.is_end_of(watch.node);
                // Nor is that its caller had left before it began.
                if own && !watch.node.node().is_closing() {
                    let reason = terminated.reason.as_str();
                    // What it did was to take too long.
                    self.as_mut().done(|| Some(digest(reason)));
                    let watch = self.project();
                    let key = || ErrorKey::new(watch.name, reason);
                    watch.node.run().fail(key);
                }
                Poll::Ready(Err(Box::new(terminated)))
            }
        }
    }
}

impl<F: Future> Future for Watch<F> {
    type Output = Result<F::Output, Box<Terminated>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let output = std::task::ready!(self.as_mut().poll_with(cx, |_| TerminalReason::Completed));
        if output.is_ok() {
            self.done(|| None);
        }
        Poll::Ready(output)
    }
}

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
