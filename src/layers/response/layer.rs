//! The builder, the service and the future of the terminal response.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    answer::{self, ErrorFormat, Statuses},
    body::TerminalResponseBody,
};
use crate::{error::BoxError, run::TerminalReason};

/// Turns the ends of runs into answers: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct TerminalResponseLayer {
    statuses: Statuses,
}

impl TerminalResponseLayer {
    /// Makes a layer that answers with the statuses of [`TerminalReason::status`].
    #[must_use]
    pub const fn new() -> Self {
        Self {
            statuses: Statuses::DEFAULT,
        }
    }

    /// Sets the statuses of the answers for terminal reasons.
    #[must_use]
    pub const fn status(mut self, status: fn(&TerminalReason) -> StatusCode) -> Self {
        self.statuses.reason = status;
        self
    }

    /// Sets the statuses of the program's own errors; `None` leaves the default.
    ///
    /// The function is not called for the end of a run.
    #[must_use]
    pub const fn error_status(mut self, status: fn(&BoxError) -> Option<StatusCode>) -> Self {
        self.statuses.error = status;
        self
    }
}

impl Default for TerminalResponseLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S> Layer<S> for TerminalResponseLayer {
    type Service = TerminalResponse<S>;

    fn layer(&self, inner: S) -> Self::Service {
        TerminalResponse {
            inner,
            statuses: self.statuses,
            unready: None,
        }
    }
}

/// The service of a [`TerminalResponseLayer`](crate::layers::response::TerminalResponseLayer).
#[derive(Debug)]
pub struct TerminalResponse<S> {
    inner: S,
    statuses: Statuses,
    /// The error of `poll_ready`, which the next call answers with.
    unready: Option<BoxError>,
}

impl<S: Clone> Clone for TerminalResponse<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            statuses: self.statuses,
            // The error answers one call only.
            unready: None,
        }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for TerminalResponse<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>>,
    S::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes>,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<TerminalResponseBody<ResBody>>;
    type Error = Infallible;
    type Future = TerminalResponseFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.unready.is_none() {
            match self.inner.poll_ready(cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => self.unready = Some(error.into()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let caller = ErrorFormat::of(&request);
        let unready = self.unready.take();
        TerminalResponseFuture {
            inner: unready.is_none().then(|| self.inner.call(request)),
            unready,
            caller,
            statuses: self.statuses,
        }
    }
}

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
            let answer = answer::to_unready(*this.caller, *this.statuses, &error)
                .map(TerminalResponseBody::whole);
            return Poll::Ready(Ok(answer));
        }
        let Some(inner) = this.inner.as_mut().as_pin_mut() else {
            panic!("a response future was polled after it was ready");
        };
        let polled = ready!(inner.poll(cx));
        this.inner.set(None);
        Poll::Ready(Ok(match polled {
            Ok(answer) => TerminalResponseBody::wrap(answer, *this.caller),
            Err(error) => answer::to_error(*this.caller, *this.statuses, &error.into())
                .map(TerminalResponseBody::whole),
        }))
    }
}
