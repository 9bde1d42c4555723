//! Runs an agent's tools as nodes of the tree of its run.

mod call;
mod watch;

pub use self::{
    call::{Call, CallResult, ToolError},
    watch::Watch,
};

use std::{fmt, future::Future, sync::Arc, time::Duration};

use crate::run::{Run, ToolArguments};

/// A tool of a run, ready to be called: [`Run::tool`].
///
/// The execution of a tool is a node of the run's tree: it ends when the run ends. If the tool's
/// own window passes, the tool ends alone.
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
    name: Arc<str>,
    window: Option<Duration>,
    /// The call's arguments, for the detection of loops.
    arguments: Option<ToolArguments>,
    grace: Option<Duration>,
    /// The id of the call, for the tool's span.
    call_id: Option<Arc<str>>,
}

impl Run {
    /// Makes a tool of this run, by name: see [`Tool`].
    pub fn tool(&self, name: impl Into<Arc<str>>) -> Tool {
        Tool {
            run: self.clone(),
            name: name.into(),
            window: None,
            arguments: None,
            grace: None,
            call_id: None,
        }
    }
}

impl Tool {
    /// Sets the arguments of the call, for the detection of loops.
    ///
    /// A [`LoopGuardLayer`](crate::LoopGuardLayer) counts the calls that it reads in an agent's
    /// requests; with arguments, the run counts this call without a request. The call counts toward
    /// the limits of [`Run::end_when_looping`], and of such a layer once one of the run's model
    /// calls has passed through it. Without either, observers get a notice when the run would have
    /// ended by the default limits. [`Call::result_by`] adds the result.
    #[must_use]
    pub fn arguments(mut self, arguments: &impl serde::Serialize) -> Self {
        self.arguments = Some(call::arguments(arguments, self.run.actions().excerpt()));
        self
    }

    /// Sets the id that the model gave the call, for the tool's [span](Run::span).
    #[must_use]
    pub fn call_id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.call_id = Some(id.into());
        self
    }

    /// Sets the longest time that the tool may take; by default that of [`Run::tool_window`].
    ///
    /// The time counts from the tool's first `Pending`, and not during a
    /// [pause](Run::pause). When the time passes, the tool alone ends, with
    /// [`StepTimeout`](crate::TerminalReason::StepTimeout).
    ///
    /// From the first `Pending` until the tool is over, this window replaces the step windows of
    /// the runs above the tool: meanwhile those windows count neither this tool nor other work. A
    /// tool with neither window is measured like a call, by the window that a
    /// [`StepTimeoutLayer`](crate::StepTimeoutLayer) of [`Scope::Run`](crate::Scope::Run) gave the
    /// run; if that window passes, the run ends, unless the layer only observes.
    #[must_use]
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = Some(window);
        self
    }

    /// Sets how long the tool may clean up after a node above it has ended.
    ///
    /// 100 ms is enough for most tools. The tool's future is polled until it is ready or the time,
    /// counted from the end, is up; to learn of the end, the future can wait for [`Run::ended`].
    /// The output of the future is discarded: the call returns that the tool was stopped. Unless
    /// set, the future is dropped at once.
    ///
    /// The grace holds only while the tool's future is polled: a layer around the tool drops the
    /// future when that layer's node ends. [`Run::settled`] waits until the grace is over.
    #[must_use]
    pub const fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Runs a tool that can fail.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the tool's future, and settles the tool's node as aborted.
    pub fn call<F, T, E>(self, future: F) -> Call<F>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        Call {
            watch: self.watch(future),
        }
    }

    /// Runs a tool that cannot fail, or that returns its errors as its result.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the tool's future, and settles the tool's node as aborted.
    pub fn watch<F: Future>(self, future: F) -> Watch<F> {
        Watch::new(self, future)
    }
}
