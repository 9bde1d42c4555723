use std::{
    convert::Infallible,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::{
    answer::ErrorFormat, body::TerminalResponseBody, future::TerminalResponseFuture,
    layer::Statuses,
};
use crate::error::BoxError;

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
