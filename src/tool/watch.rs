//! The future of a tool: supervised, with a window and a grace period.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::Tool;
use crate::{
    llm::digest,
    run::{
        ErrorKey, NodeKind, PollScope, ResetOn, Run, Scope, Step, StepKind, TerminalReason,
        Terminated, ToolArguments, WorkingNotices, nanos,
    },
    supervise::{StepWindow, TaskTimer, poll_until_end},
};

pin_project! {
    /// The future of a tool, as [`Tool::watch`] makes it.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Watch<F> {
        #[pin]
        future: Option<F>,
        pub(crate) node: Run,
        pub(crate) name: Arc<str>,
        arguments: Option<ToolArguments>,
        timer: TaskTimer,
        // Boxed: most runs want no notices.
        working: Option<Box<WorkingNotices>>,
        grace: Option<Grace>,
        // The tool's own window, or else the windows of its run.
        windows: Vec<StepWindow>,
        own_window: bool,
        stand_in: Option<StandIn>,
        settled: bool,
    }

    impl<F> PinnedDrop for Watch<F> {
        fn drop(this: Pin<&mut Self>) {
            // `finish` drops the tool's future before it settles the node, so no future of a
            // settled tool is left.
            this.finish(TerminalReason::Aborted);
        }
    }
}

impl<F> Watch<F> {
    pub(crate) fn new(tool: Tool, future: F) -> Self {
        // The check ends the outermost node with a passed deadline; the new tool's node inherits
        // that end.
        drop(tool.run.check());
        let node = tool.run.open_below(NodeKind::Tool);
        node.node().begin_work();
        node.spans().trace_tool(&tool.name, tool.call_id.as_deref());
        if node.terminal_reason().is_none() {
            let step = Step::new(StepKind::ToolExecution);
            node.note(step.detail(tool.name.clone()));
        } else {
            tool.run.node().refuse_tool(&tool.name);
        }
        let window = tool.window.or_else(|| node.node().tool_window());
        Self {
            future: Some(future),
            node,
            name: tool.name,
            arguments: tool.arguments,
            timer: TaskTimer::default(),
            working: tool
                .run
                .asked_notices()
                .and_then(WorkingNotices::new)
                .map(Box::new),
            grace: tool.grace.map(Grace::new),
            own_window: window.is_some(),
            windows: window
                .map(|window| StepWindow::new(window, window, ResetOn::Step, Scope::Found))
                .into_iter()
                .collect(),
            stand_in: None,
            settled: false,
        }
    }

    fn finish(self: Pin<&mut Self>, reason: TerminalReason) {
        let mut this = self.project();
        this.future.set(None);
        this.timer.release(this.node);
        for window in this.windows {
            window.release(this.node);
        }
        if !std::mem::replace(this.settled, true) {
            if reason != TerminalReason::Aborted && this.node.terminal_reason().is_none() {
                let step = Step::new(StepKind::ToolComplete);
                this.node.note(step.detail(this.name.clone()));
            }
            this.node.settle(reason);
        }
        *this.stand_in = None;
    }

    /// Records the call for the detection of loops, if the tool has arguments. The caller has
    /// settled the tool's node.
    pub(crate) fn record(self: Pin<&mut Self>, result: impl FnOnce() -> Option<u64>) {
        let this = self.project();
        if let Some(arguments) = this.arguments.take() {
            let actions = this.node.actions();
            actions.ran(this.name.clone(), arguments, result());
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
        let (own_window, stand_in) = (*this.own_window, this.stand_in);
        if this.windows.is_empty() {
            // A call of the run may have added a window to the run since the last poll.
            *this.windows = windows_of_run(node);
        }
        let notify = |now| {
            if own_window && stand_in.is_none() {
                *stand_in = Some(StandIn::new(node.clone(), now));
            }
            let step = || Step::new(StepKind::ToolExecution).detail(name.clone());
            node.tell_working(working.as_mut()?, now, step)
        };
        match ready!(poll_until_end(
            this.timer,
            node,
            this.windows,
            notify,
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
                    ready!(grace.poll(this.timer, node, future, cx));
                }
                self.as_mut().finish(terminated.reason.clone());
                // A tool that its own window ended has failed; one that its run ended has not.
                let watch = self.as_mut().project();
                let own =
                    terminated.kind == NodeKind::Tool && terminated.is_end_of(watch.node.node());
                // A tool that a closing refused at its birth never began, which is not a failure.
                let is_refused = watch.node.node().refusal() == Some(&terminated.reason);
                if own && !is_refused {
                    let reason = terminated.reason.as_str();
                    // The timeout counts as the tool's result.
                    self.as_mut().record(|| Some(digest(reason)));
                    let watch = self.project();
                    let key = ErrorKey::new(watch.name, reason);
                    watch.node.errors().fail(key);
                }
                Poll::Ready(Err(Box::new(terminated)))
            }
        }
    }
}

impl<F: Future> Future for Watch<F> {
    type Output = Result<F::Output, Box<Terminated>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let output = ready!(self.as_mut().poll_with(cx, |_| TerminalReason::Completed));
        if output.is_ok() {
            self.record(|| None);
        }
        Poll::Ready(output)
    }
}

/// The windows of the tool's run, for a tool that has no window itself.
fn windows_of_run(tool: &Run) -> Vec<StepWindow> {
    let windows = tool.windows().into_iter();
    let windows = windows.map(|(length, resets_on, observes)| {
        StepWindow::new(length, length, resets_on, Scope::Run).observing(observes)
    });
    windows.collect()
}

/// A guard that stops the step windows of the runs above a tool, because the tool's own window
/// replaces them.
#[derive(Debug)]
struct StandIn(Run);

impl StandIn {
    fn new(tool: Run, now: Duration) -> Self {
        tool.node().stand_in(now);
        Self(tool)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.0.node().stand_down(self.0.now());
    }
}

/// The time in which a tool may clean up after a node above it has ended.
#[derive(Debug)]
pub(crate) struct Grace {
    length: Duration,
    /// Whether the tool was polled before its node ended. A tool that was not has nothing to clean
    /// up.
    has_begun: bool,
}

impl Grace {
    pub(crate) const fn new(length: Duration) -> Self {
        Self {
            length,
            has_begun: false,
        }
    }

    /// Records that the tool is polled, unless its node has ended.
    pub(crate) fn begin(&mut self, tool: &Run) {
        self.has_begun |= !tool.node().is_over();
    }

    /// Polls the future of `tool`, which has ended, until it is ready or the time is up.
    ///
    /// The time counts from the end of the node above the tool. A tool that was never polled, or
    /// that did not end with a node above it, is ready at once.
    pub(crate) fn poll<F: Future>(
        &self,
        timer: &mut TaskTimer,
        tool: &Run,
        future: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let node = tool.node();
        // A tool that its own window ended gets no grace: the tool has used up its time.
        let end = node.nearest_end().filter(|end| end.origin != node.number());
        let Some(end) = end.filter(|_| self.has_begun) else {
            return Poll::Ready(());
        };
        let until = end.at().saturating_add(self.length);
        let scope = PollScope::enter(cx.waker(), tool);
        if future.poll(cx).is_ready() || PollScope::now(tool) >= until {
            return Poll::Ready(());
        }
        timer.wait(&scope, tool, Some(nanos(until)), cx);
        Poll::Pending
    }
}
