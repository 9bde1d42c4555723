//! Tools as nodes of a run.

mod call;
mod watch;

pub use self::{
    call::{Call, CallResult, ToolError},
    watch::Watch,
};

use std::{borrow::Cow, fmt, future::Future, time::Duration};

use crate::run::Run;

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
    action: Option<ToolAction>,
    grace: Option<Duration>,
}

impl Run {
    /// A tool of this run, by name: see [`Tool`].
    pub fn tool(&self, name: impl Into<Cow<'static, str>>) -> Tool {
        Tool {
            run: self.clone(),
            name: name.into(),
            window: None,
            action: None,
            grace: None,
        }
    }
}

impl Tool {
    /// Says what the tool is called with, so that a run that goes in circles is
    /// found, as a [`LoopGuardLayer`](crate::LoopGuardLayer) finds it in the
    /// requests of an agent. It ends by the limits of such a layer that one of its
    /// calls has passed, or as [`Run::end_when_looping`] says; without either
    /// observers are told when it would have ended by the usual limits.
    /// See [`Call::result_by`] for what comes of it.
    #[must_use]
    pub fn arguments(mut self, arguments: &impl serde::Serialize) -> Self {
        let arguments = call::arguments(arguments);
        self.action = Some(ToolAction { arguments });
        self
    }

    /// The longest the tool may take, counted from its first wait and not
    /// during a [pause](Run::pause); its end is
    /// [`StepTimeout`](crate::TerminalReason::StepTimeout) of the tool alone. None
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
        Watch::new(self, future)
    }
}

/// The arguments of a tool call, as a digest, for the detection of loops.
#[derive(Clone, Debug)]
pub(crate) struct ToolAction {
    arguments: u64,
}

impl ToolAction {
    /// Records on the run that the call has ended, with the digest of its result.
    fn record(self, node: &Run, name: &str, result: Option<u64>) {
        node.ran(name, self.arguments, result);
    }
}
