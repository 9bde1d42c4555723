use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use super::{
    answer::{self, ErrorFormat},
    body::TerminalResponseBody,
    layer::Statuses,
};
use crate::error::BoxError;

pin_project! {
    /// The response future of [`TerminalResponse`](crate::layers::response::TerminalResponse).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct TerminalResponseFuture<F> {
        #[pin]
        inner: Option<F>,
        unready: Option<BoxError>,
        caller: ErrorFormat,
        statuses: Statuses,
    }
}

impl<F> TerminalResponseFuture<F> {
    pub(super) const fn new(inner: F, caller: ErrorFormat, statuses: Statuses) -> Self {
        Self {
            inner: Some(inner),
            unready: None,
            caller,
            statuses,
        }
    }

    pub(super) const fn unready(error: BoxError, caller: ErrorFormat, statuses: Statuses) -> Self {
        Self {
            inner: None,
            unready: Some(error),
            caller,
            statuses,
        }
    }
}

impl<F, B, E> Future for TerminalResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes>,
{
    type Output = Result<Response<TerminalResponseBody<B>>, Infallible>;

    /// # Panics
    ///
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Some(error) = this.unready.take() {
            let answer = answer::to_unready(*this.caller, *this.statuses, &error);
            return Poll::Ready(Ok(answer));
        }
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            panic!("a response future was polled after it was ready");
        };
        let polled = ready!(inner.poll(cx));
        this.inner.set(None);
        Poll::Ready(Ok(match polled {
            Ok(answer) => TerminalResponseBody::wrap(answer, *this.caller),
            Err(error) => answer::to_error(*this.caller, *this.statuses, &error.into()),
        }))
    }
}
