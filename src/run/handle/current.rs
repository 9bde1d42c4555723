//! The current node of a task, as a task local, for code that gets no node with its request.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;
use tokio::task::futures::TaskLocalFuture;

use super::Run;

tokio::task_local! {
    static CURRENT: Run;
}

impl Run {
    /// Makes this node the [`current`](Self::current) one while `future` is polled.
    ///
    /// A library between the program and its HTTP client may drop the extensions of requests. A
    /// service of the program below that library can find the run by [`current`](Self::current),
    /// and attach the request to it. The layers of this crate do not read `current`: they act on
    /// the node in the request.
    ///
    /// An inner scope hides the outer one. A task that `future` spawns is not in the scope.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use tower_agent::{Run, TerminalReason};
    ///
    /// async fn deep_inside_a_library() {
    ///     if let Some(run) = Run::current() {
    ///         run.end(TerminalReason::Aborted);
    ///     }
    /// }
    ///
    /// let run = Run::open();
    /// run.scope(deep_inside_a_library()).await;
    /// assert_eq!(run.terminal_reason(), Some(TerminalReason::Aborted));
    /// assert!(Run::current().is_none());
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// Dropping the returned future drops `future`, still in the scope.
    pub fn scope<F: Future>(&self, future: F) -> InScope<F> {
        InScope {
            inner: CURRENT.scope(self.clone(), future),
        }
    }

    /// The node of the caller's [`scope`](Self::scope); `None` outside of all scopes.
    #[must_use]
    pub fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }
}

pin_project! {
    /// A future in the scope of a run: [`Run::scope`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct InScope<F> {
        #[pin]
        inner: TaskLocalFuture<Run, F>,
    }
}

impl<F: Future> Future for InScope<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().inner.poll(cx)
    }
}
