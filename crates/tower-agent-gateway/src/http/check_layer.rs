//! A check of requests as a layer.

use std::task::{Context, Poll};

use axum::{extract::Request, response::Response};
use futures_util::future::{Either, Ready, ready};
use tower::{Layer, Service};

/// A layer that calls the inner service with a request, or answers the request itself.
///
/// axum's `from_fn` does the same, but allocates nine times for each request.
#[derive(Clone, Debug)]
pub(crate) struct CheckLayer<C>(pub(crate) C);

/// The service of [`CheckLayer`].
#[derive(Clone, Debug)]
pub(crate) struct Checked<C, S> {
    check: C,
    inner: S,
}

/// A decision about requests.
pub(crate) trait Check {
    /// Admits the request, or returns the answer to it.
    ///
    /// # Errors
    ///
    /// The answer to a request that is refused. It is boxed, because it is large and rare.
    fn check(&self, request: &mut Request) -> Result<(), Box<Response>>;
}

impl<C: Clone, S> Layer<S> for CheckLayer<C> {
    type Service = Checked<C, S>;

    fn layer(&self, inner: S) -> Checked<C, S> {
        let check = self.0.clone();
        Checked { check, inner }
    }
}

impl<C, S> Service<Request> for Checked<C, S>
where
    C: Check,
    S: Service<Request, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        match self.check.check(&mut request) {
            Ok(()) => Either::Left(self.inner.call(request)),
            Err(answer) => Either::Right(ready(Ok(*answer))),
        }
    }
}
