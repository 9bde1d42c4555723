use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;

use super::{error::ToolError, watch::Watch};
use crate::{
    llm::{digest, failure::FailureClass},
    run::{ErrorKey, TerminalReason},
};

pin_project! {
    /// The execution of a tool that can fail: [`Tool::call`].
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
    /// `result` is the digest of an output, if it is known.
    pub(crate) fn poll_with<T, E>(
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
