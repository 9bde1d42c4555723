use std::{
    borrow::Cow,
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;

use super::errors::ErrorKey;
use super::{
    NodeKind, ResetOn, Run, Step, StepKind, TerminalReason, Terminated,
    acting::{self, Doing},
    drive::{Drive, poll_until_end_and},
    grace::Grace,
    notices::Working,
    silence::Silence,
};
use crate::{conversation::digest, upstream::FailureClass};

/// A tool of a run, ready to be called: [`Run::tool`].
///
/// Its execution is a node of the run's tree: it ends when the run ends, and a
/// window of its own ends only the tool.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::time::Duration;
/// use tower_agent::{Run, ToolError};
///
/// let run = Run::open();
/// let found = run
///     .tool("search")
///     .window(Duration::from_secs(30))
///     .call(async { Err::<(), _>("no such index") })
///     .await;
///
/// assert!(matches!(found, Err(ToolError::Failed("no such index"))));
/// assert_eq!(run.terminal_reason(), None);
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Tool {
    run: Run,
    name: Cow<'static, str>,
    window: Option<Duration>,
    doing: Option<Doing>,
    grace: Option<Duration>,
}

/// Why a tool gave no result.
#[non_exhaustive]
#[derive(Debug)]
pub enum ToolError<E> {
    /// The tool's own error. The run goes on.
    Failed(E),
    /// The tool was dropped: its own window passed (then `kind` is
    /// [`NodeKind::Tool`]), or something above it ended.
    Terminated(Box<Terminated>),
}

impl Tool {
    pub(super) const fn new(run: Run, name: Cow<'static, str>) -> Self {
        Self {
            run,
            name,
            window: None,
            doing: None,
            grace: None,
        }
    }

    /// Says what the tool is called with, so that a run that goes in circles is
    /// found, as a [`LoopGuardLayer`](crate::LoopGuardLayer) finds it in the
    /// requests of an agent. It ends by the limits of such a layer that one of its
    /// calls has passed, or as [`Run::end_when_looping`] says; without either
    /// observers are told when it would have ended by the usual limits.
    /// See [`Call::result_by`] for what comes of it.
    #[must_use]
    pub fn arguments(mut self, arguments: &impl serde::Serialize) -> Self {
        let arguments = acting::arguments(arguments);
        self.doing = Some(Doing { arguments });
        self
    }

    /// The longest the tool may take, counted from its first wait and not
    /// during a [pause](Run::pause); its end is
    /// [`StepTimeout`](TerminalReason::StepTimeout) of the tool alone. None
    /// unless set.
    #[must_use]
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// How long the tool may go on, to clean up, when something above it ends; 100 ms
    /// is enough for most. It is polled until it is ready or the time is up, counted
    /// from the end, and can wait for [`Run::ended`]; whatever it answers, the call
    /// answers that it was stopped. None unless set: it is dropped at once, as a
    /// model call always is.
    ///
    /// It holds only as long as the tool's future is polled: a layer around it that
    /// ends drops it. [`Run::settled`] waits for it.
    #[must_use]
    pub const fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Runs a tool that can fail.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the tool's and settles its node as aborted.
    pub fn call<F, T, E>(self, future: F) -> Call<F>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        Call {
            watch: self.watch(future),
        }
    }

    /// Runs a tool that cannot fail, or whose errors are its result.
    ///
    /// # Cancel safety
    ///
    /// As for [`call`](Self::call).
    pub fn watch<F: Future>(self, future: F) -> Watch<F> {
        // A deadline that has come is stored here; the tool inherits it.
        drop(self.run.check());
        let node = self.run.open_below(NodeKind::Tool);
        node.node().enter();
        if node.terminal_reason().is_none() {
            let step = Step::new(StepKind::ToolExecution);
            node.note(step.detail(self.name.clone()));
        } else {
            self.run.refuse_tool(&self.name);
        }
        Watch {
            future: Some(future),
            node,
            name: self.name,
            doing: self.doing,
            drive: Drive::default(),
            working: self
                .run
                .asked_notices()
                .and_then(Working::new)
                .map(Box::new),
            grace: self.grace.map(Grace::new),
            silence: self
                .window
                .map(|window| Silence::new(ResetOn::Step, window)),
            settled: false,
        }
    }
}

pin_project! {
    /// The execution of a tool that can fail: [`Tool::call`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Call<F> {
        #[pin]
        watch: Watch<F>,
    }
}

pin_project! {
    /// The execution of a tool: [`Tool::watch`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Watch<F> {
        #[pin]
        future: Option<F>,
        node: Run,
        name: Cow<'static, str>,
        doing: Option<Doing>,
        drive: Drive,
        // Boxed: most runs ask for no notices.
        working: Option<Box<Working>>,
        grace: Option<Grace>,
        silence: Option<Silence>,
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
    fn done(self: Pin<&mut Self>, result: impl FnOnce() -> Option<u64>) {
        let this = self.project();
        if let Some(doing) = this.doing.take() {
            doing.done(this.node, this.name, result());
        }
    }

    fn poll_with<T>(
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

impl<F, T, E> Future for Call<F>
where
    F: Future<Output = Result<T, E>>,
    E: fmt::Display,
{
    type Output = Result<T, ToolError<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_with(cx, |_| None)
    }
}

impl<F> Call<F> {
    /// `result` is the digest of an output, if it is known.
    pub(super) fn poll_with<T, E>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        result: impl FnOnce(&T) -> Option<u64>,
    ) -> Poll<Result<T, ToolError<E>>>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        let failed = TerminalReason::Failed(FailureClass::Caller);
        let judge = |output: &Result<T, E>| match output {
            Ok(_) => TerminalReason::Completed,
            Err(error) => {
                tracing::debug!(target: "tower_agent", %error, "tool failed");
                failed
            }
        };
        match ready!(self.as_mut().project().watch.poll_with(cx, judge)) {
            Ok(Ok(output)) => {
                self.project().watch.done(|| result(&output));
                Poll::Ready(Ok(output))
            }
            Ok(Err(error)) => {
                // Counted once the tool is gone: it may be the run's last error.
                let mut watch = self.project().watch;
                watch.as_mut().done(|| Some(digest(error.to_string())));
                let watch = watch.project();
                let key = || ErrorKey::new(watch.name, &error.to_string());
                watch.node.run().fail(key);
                Poll::Ready(Err(ToolError::Failed(error)))
            }
            Err(terminated) => Poll::Ready(Err(ToolError::Terminated(terminated))),
        }
    }
}

impl<E: fmt::Display> fmt::Display for ToolError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "tool failed: {error}"),
            Self::Terminated(terminated) => write!(f, "tool was stopped: {terminated}"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> Error for ToolError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(_) => None,
            Self::Terminated(terminated) => Some(&**terminated),
        }
    }
}
