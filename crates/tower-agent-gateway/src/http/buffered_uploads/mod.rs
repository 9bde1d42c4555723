//! Bounds the bytes of request bodies that the gateway holds, in all and for each owner.
//!
//! The stack reads a request before it decides about it, so one caller with many long uploads could
//! use up the memory of the process, whatever the caps of its owner.
//!
//! # What is counted
//!
//! The bytes of a body count as they arrive, and until the last clone of them is dropped: mostly
//! once an upstream has them, at the latest at the end of the call. The count is the memory that is
//! reserved for a body, which may exceed its bytes by less than 1 MiB. A body that has arrived is one
//! piece, so no reader inside of this service copies it. To make it one piece takes the memory of
//! one more body, for each thread, until the copy is done.
//!
//! # Beyond the bound
//!
//! A request that announces more than what is left is refused at its head, before a run is opened
//! for it. Any other is refused at the first byte that does not fit, and its bytes are freed.

mod body;
mod held_bytes;
#[cfg(test)]
mod tests;

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use axum::{body::Body, response::Response};
use futures_util::future::{Either, Ready, ready as at_once};
use http::{HeaderValue, Request, StatusCode, header};
use http_body::Body as _;
use pin_project_lite::pin_project;
use tower::Service;
use tower_agent::{TerminalReason, llm::dialect::Dialect};

pub(crate) use self::held_bytes::{Charge, HeldBytes, HeldLimits};
use self::{body::BufferedBody, held_bytes::BufferFull};
use super::{api, callers::owner_of};
use crate::config::MAX_BODY;

/// Counts the bodies of requests, and refuses those that exceed the limits: see the [module](self).
#[derive(Clone, Debug)]
pub(crate) struct BufferedUploads<S> {
    held: HeldBytes,
    limits: HeldLimits,
    inner: S,
}

pin_project! {
    /// The response future of a request whose body is counted.
    pub(crate) struct BufferedUploadFuture<F> {
        #[pin]
        future: F,
        dialect: Dialect,
        // The reason for which the body was refused while it was read. `None` for a request
        // without a body.
        refused: Option<Arc<OnceLock<BufferFull>>>,
    }
}

impl<S> BufferedUploads<S> {
    /// Puts the service around `inner`; `held` counts for all services that share it.
    pub(crate) const fn new(held: HeldBytes, limits: HeldLimits, inner: S) -> Self {
        Self {
            held,
            limits,
            inner,
        }
    }
}

impl<S: Service<Request<Body>, Response = Response>> Service<Request<Body>> for BufferedUploads<S> {
    type Response = Response;
    type Error = S::Error;
    type Future = Either<BufferedUploadFuture<S::Future>, Ready<Result<Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let dialect = api::dialect(request.uri(), request.headers());
        let mut refused = None;
        let announced = request.body().size_hint().lower();
        let request = match usize::try_from(announced) {
            _ if request.body().is_end_stream() => request,
            // The stack refuses a longer body at its first byte.
            Ok(announced) if announced <= MAX_BODY => {
                let owner = owner_of(request.extensions(), request.headers());
                let charge = match self.held.open(owner, self.limits, announced) {
                    Ok(charge) => charge,
                    Err(full) => return Either::Right(at_once(Ok(answer(dialect, &full)))),
                };
                let refused = Arc::clone(refused.insert(Arc::default()));
                request.map(|body| Body::new(BufferedBody::new(body, charge, refused)))
            }
            _ => request,
        };
        Either::Left(BufferedUploadFuture {
            future: self.inner.call(request),
            dialect,
            refused,
        })
    }
}

impl<F, E> Future for BufferedUploadFuture<F>
where
    F: Future<Output = Result<Response, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let given = ready!(this.future.poll(cx))?;
        let full = this.refused.as_deref().and_then(OnceLock::get);
        // If the run ended meanwhile, its reason tells more.
        let has_reason = || given.extensions().get::<TerminalReason>().is_some();
        Poll::Ready(Ok(match full {
            Some(full) if !has_reason() => answer(*this.dialect, full),
            _ => given,
        }))
    }
}

/// The 503 for an upload that does not fit.
fn answer(dialect: Dialect, full: &BufferFull) -> Response {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    let message = full.to_string();
    let mut answer = api::error_in(dialect, status, "upload_buffer_full", &message);
    let headers = answer.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert("x-should-retry", HeaderValue::from_static("true"));
    answer
}
