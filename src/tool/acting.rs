//! Tools that say what they do.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use serde::Serialize;

use super::{call::Call, error::ToolError};
use crate::{
    llm::{canonical, digest},
    run::Run,
};

/// The digest of a value, as it reads as JSON; of one that JSON cannot hold that
/// of its error.
pub(crate) fn arguments(value: &impl Serialize) -> u64 {
    match serde_json::to_vec(value) {
        Ok(json) => canonical(&json),
        Err(error) => digest(error.to_string()),
    }
}

/// What a tool does, for whoever looks for loops.
#[derive(Clone, Debug)]
pub(crate) struct Doing {
    pub(crate) arguments: u64,
}

impl Doing {
    /// It is done.
    pub(crate) fn done(self, node: &Run, name: &str, result: Option<u64>) {
        node.ran(name, self.arguments, result);
    }
}

pin_project! {
    /// A tool whose result is compared with that of the time before:
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
    /// What of its output says whether the tool found the same as before; without
    /// it only the arguments are compared, and, after a failure, the error's text.
    /// Nothing unless the tool says its [arguments](crate::tool::Tool::arguments).
    ///
    /// # Cancel safety
    ///
    /// As for [`Tool::call`](crate::tool::Tool::call).
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
        let result = |output: &T| Some(arguments(&read(output)));
        Poll::Ready(ready!(this.call.poll_with(cx, result)))
    }
}
