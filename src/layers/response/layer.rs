//! The builder, the service, the future and the body of the terminal response layer.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header, response::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    answer::{self, ErrorFormat, Statuses},
    stream::Events,
};
use crate::{
    body::{content_length, has_body, unframe},
    error::BoxError,
    run::{Run, TerminalReason},
    supervise::{ResponseMarks, Stream},
};

/// Turns errors and ends of runs into answers and error events: see the [module](super).
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

    /// Sets the function that chooses the status of an answer for a terminal reason.
    #[must_use]
    pub const fn status(mut self, status: fn(&TerminalReason) -> StatusCode) -> Self {
        self.statuses.reason = status;
        self
    }

    /// Sets the function that chooses the status for other errors; `None` leaves the default.
    ///
    /// The layer does not call the function for the end of a run.
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
    /// The error that `poll_ready` got from the inner service; the next call answers with it.
    unready: Option<BoxError>,
}

impl<S: Clone> Clone for TerminalResponse<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            statuses: self.statuses,
            // Not cloned: the error is the answer to one call only.
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

pin_project! {
    /// The response body of [`TerminalResponse`](crate::layers::response::TerminalResponse).
    #[derive(Debug)]
    pub struct TerminalResponseBody<B> {
        #[pin]
        inner: Option<B>,
        // The state of an event stream; `None` for any other body.
        events: Option<Box<Events>>,
        // The body of an answer that this layer made, until the caller has got it.
        whole: Option<Bytes>,
    }
}

impl<B> TerminalResponseBody<B> {
    pub(super) const fn whole(body: Bytes) -> Self {
        Self {
            inner: None,
            events: None,
            whole: Some(body),
        }
    }

    pub(super) fn wrap(answer: Response<B>, caller: ErrorFormat) -> Response<Self>
    where
        B: Body,
    {
        let (mut parts, body) = answer.into_parts();
        check_length(&mut parts, &body.size_hint(), caller);
        let streams =
            has_body(caller.head, parts.status) && Stream::is_events(parts.status, &parts.headers);
        let events = streams.then(|| {
            // The length is not known, because an error event may follow.
            parts.headers.remove(header::CONTENT_LENGTH);
            let no_cache = HeaderValue::from_static("no-cache");
            parts.headers.insert(header::CACHE_CONTROL, no_cache);
            parts
                .headers
                .insert("x-accel-buffering", HeaderValue::from_static("no"));
            let judged = parts.extensions.get::<ResponseMarks>().cloned();
            let run = parts.extensions.get::<Run>().cloned();
            Box::new(Events::new(caller.dialect, judged, run))
        });
        let body = Self {
            inner: Some(body),
            events,
            whole: None,
        };
        Response::from_parts(parts, body)
    }
}

/// Removes a `Content-Length` that is not the exact size of the body.
///
/// A server sends that header unchecked: an upstream's bytes beyond the length would count as the
/// answer to the caller's next request.
fn check_length(parts: &mut Parts, size: &SizeHint, caller: ErrorFormat) {
    unframe(&mut parts.headers);
    if !parts.headers.contains_key(header::CONTENT_LENGTH) {
        return;
    }
    let said = content_length(&parts.headers);
    // Answers to HEAD and a 304 announce the length of a body that is not sent.
    let announces = caller.head || parts.status == StatusCode::NOT_MODIFIED;
    if said.is_none() || !announces && said != size.exact() {
        parts.headers.remove(header::CONTENT_LENGTH);
    }
}

impl<B> Body for TerminalResponseBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        if let Some(body) = this.whole.take() {
            return Poll::Ready(Some(Ok(Frame::data(body))));
        }
        loop {
            if let Some(frame) = this.events.as_mut().and_then(|events| events.next()) {
                return Poll::Ready(Some(Ok(frame)));
            }
            let Some(inner) = this.inner.as_mut().as_pin_mut() else {
                return Poll::Ready(None);
            };
            let frame = ready!(inner.poll_frame(cx)).map(|frame| frame.map_err(Into::into));
            let over = !matches!(frame, Some(Ok(_)));
            if over {
                // Drop the upstream now, because the caller may hold this body for a while.
                this.inner.set(None);
            }
            let Some(events) = this.events else {
                return Poll::Ready(frame);
            };
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => events.push(data),
                    Err(trailers) => {
                        this.inner.set(None);
                        events.trailers(trailers);
                    }
                },
                Some(Err(error)) => events.fail(&error),
                None => events.end(),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match (&self.events, &self.inner) {
            (Some(events), inner) => inner.is_none() && events.is_empty(),
            (None, Some(inner)) => inner.is_end_stream(),
            (None, None) => self.whole.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.whole, &self.inner) {
            (Some(body), _) => SizeHint::with_exact(body.len() as u64),
            (None, Some(inner)) if self.events.is_none() => inner.size_hint(),
            (None, None) if self.events.is_none() => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}
