//! The builder, the service and its future.

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

/// Turns ends into answers: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct TerminalResponseLayer {
    statuses: Statuses,
}

impl TerminalResponseLayer {
    /// Statuses as [`TerminalReason::status`] says.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            statuses: Statuses::DEFAULT,
        }
    }

    /// Other statuses for reasons.
    #[must_use]
    pub const fn status(mut self, status: fn(&TerminalReason) -> StatusCode) -> Self {
        self.statuses.reason = status;
        self
    }

    /// Statuses for errors of the program's own; `None` leaves the default.
    /// Not asked about the end of a run.
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
        TerminalResponse::new(inner, self.statuses)
    }
}

/// The service of a [`TerminalResponseLayer`](crate::layers::response::TerminalResponseLayer).
#[derive(Debug)]
pub struct TerminalResponse<S> {
    inner: S,
    statuses: Statuses,
    /// Why the inner service was not ready: the next call is answered with it.
    unready: Option<BoxError>,
}

impl<S> TerminalResponse<S> {
    pub(super) const fn new(inner: S, statuses: Statuses) -> Self {
        Self {
            inner,
            statuses,
            unready: None,
        }
    }
}

impl<S: Clone> Clone for TerminalResponse<S> {
    fn clone(&self) -> Self {
        // An error belongs to the one call that it is the answer of.
        Self::new(self.inner.clone(), self.statuses)
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
        match self.unready.take() {
            Some(error) => TerminalResponseFuture::unready(error, caller, self.statuses),
            None => TerminalResponseFuture::new(self.inner.call(request), caller, self.statuses),
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
