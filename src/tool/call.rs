//! The future of a tool that can fail, and its error.

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use serde::Serialize;

use super::watch::Watch;
use crate::{
    llm::{canonical, digest, excerpt, failure::FailureClass},
    run::{ErrorKey, TerminalReason, Terminated, ToolArguments},
};

pin_project! {
    /// The future of a tool that can fail, as [`Tool::call`] makes it.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Call<F> {
        #[pin]
        pub(crate) watch: Watch<F>,
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
    /// Polls the tool; `result` makes the digest of its output, if the program wants one.
    pub(crate) fn poll_with<T, E>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        result: impl FnOnce(&T) -> Option<u64>,
    ) -> Poll<Result<T, ToolError<E>>>
    where
        F: Future<Output = Result<T, E>>,
        E: fmt::Display,
    {
        let judge = |output: &Result<T, E>| match output {
            Ok(_) => TerminalReason::Completed,
            Err(error) => {
                tracing::debug!(target: "tower_agent", %error, "tool failed");
                TerminalReason::Failed(FailureClass::Caller)
            }
        };
        match ready!(self.as_mut().project().watch.poll_with(cx, judge)) {
            Ok(Ok(output)) => {
                self.project().watch.record(|| result(&output));
                Poll::Ready(Ok(output))
            }
            Ok(Err(error)) => {
                // The error is recorded after the tool has settled, because the record may end the
                // run.
                let mut watch = self.project().watch;
                watch.as_mut().record(|| Some(digest(error.to_string())));
                let watch = watch.project();
                let key = ErrorKey::new(watch.name, &error.to_string());
                watch.node.errors().fail(key);
                Poll::Ready(Err(ToolError::Failed(error)))
            }
            Err(terminated) => Poll::Ready(Err(ToolError::Terminated(terminated))),
        }
    }
}

/// The digest of a value as JSON, with an excerpt of at most `most` bytes.
///
/// For a value without a JSON form it is the digest of the serializer's error, without an excerpt.
pub(crate) fn arguments(value: &impl Serialize, most: usize) -> ToolArguments {
    match serde_json::to_vec(value) {
        Ok(json) => ToolArguments {
            digest: canonical(&json),
            excerpt: excerpt(&json, most),
        },
        Err(error) => ToolArguments {
            digest: digest(error.to_string()),
            excerpt: None,
        },
    }
}

pin_project! {
    /// The future of a tool call that compares its result with that of the last same call:
    /// [`Call::result_by`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct CallResult<F, G> {
        #[pin]
        call: Call<F>,
        read: G,
    }
}

impl<F> Call<F> {
    /// Selects the part of the output that the detection of loops compares.
    ///
    /// The selected part of the output is compared with that of the last same call. Without this
    /// selection only the arguments are compared, and after a failure the error's text. The
    /// selection has no effect unless the tool has [arguments](crate::tool::Tool::arguments).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the tool's future, and settles the tool's node as aborted.
    pub fn result_by<T, E, G, R>(self, read: G) -> CallResult<F, G>
    where
        F: Future<Output = Result<T, E>>,
        G: FnMut(&T) -> R,
        R: Serialize,
    {
        CallResult { call: self, read }
    }
}

impl<F, G, T, E, R> Future for CallResult<F, G>
where
    F: Future<Output = Result<T, E>>,
    E: std::fmt::Display,
    G: FnMut(&T) -> R,
    R: Serialize,
{
    type Output = Result<T, ToolError<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let read = this.read;
        let result = |output: &T| Some(arguments(&read(output), 0).digest);
        this.call.poll_with(cx, result)
    }
}

/// The reason why a tool gave no result.
#[non_exhaustive]
#[derive(Debug)]
pub enum ToolError<E> {
    /// The tool's own error. The run goes on, unless a limit on its errors or loops ends it.
    Failed(E),
    /// The tool was dropped or never started, because a node above it ended or was closing, or the
    /// tool was dropped because its window passed.
    ///
    /// If the tool's own window passed, `kind` is [`NodeKind::Tool`](crate::NodeKind::Tool).
    Terminated(Box<Terminated>),
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
