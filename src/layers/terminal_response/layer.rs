//! The builder, the service and the response future of the terminal response layer.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    body::TerminalResponseBody,
    error_answer::{self, ErrorAnswer, ErrorFormat, Statuses},
    keep_alive::{KeepAlive, KeepAliveSettings, Write},
};
use crate::{
    error::BoxError,
    run::{ProgressNotices, TerminalReason},
};

/// Turns errors and ends of runs into answers and error events: see the [module](super).
#[derive(Clone, Copy, Debug)]
pub struct TerminalResponseLayer {
    statuses: Statuses,
    keep_alive: KeepAliveSettings,
    is_gated: bool,
}

impl TerminalResponseLayer {
    /// Makes a layer that answers with the statuses of [`TerminalReason::status`].
    ///
    /// The new layer sends no notices, no keep-alive comments and no early head.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            statuses: Statuses::DEFAULT,
            keep_alive: KeepAliveSettings::OFF,
            is_gated: false,
        }
    }

    /// Sets the function that chooses the status of an answer for a terminal reason.
    #[must_use]
    pub const fn status(mut self, status: fn(&TerminalReason) -> StatusCode) -> Self {
        self.statuses.reason = status;
        self
    }

    /// Sets the function that chooses the status for errors without a terminal reason.
    ///
    /// If the function returns `None`, the default status stays.
    #[must_use]
    pub const fn error_status(mut self, status: fn(&BoxError) -> Option<StatusCode>) -> Self {
        self.statuses.error = status;
        self
    }

    /// Sets how long an event stream may send no bytes before the layer inserts a comment line, or a
    /// ping in the dialect of Anthropic.
    ///
    /// With `None`, the default, or zero the layer keeps only streams with an
    /// [early head](Self::early_head) alive. Most proxies allow 30 s or more without bytes, so 15 s
    /// suits them.
    #[must_use]
    pub const fn keep_alive(mut self, every: Option<Duration>) -> Self {
        self.keep_alive.every = match every {
            Some(every) if every.is_zero() => None,
            every => every,
        };
        self
    }

    /// Has the layer report slow calls to the observers of their runs; off by default.
    ///
    /// The times hold for the layer's calls, and for the tools of their runs, unless the program
    /// or another layer has set [others](crate::Run::notices) for these tools.
    #[must_use]
    pub const fn notices(mut self, notices: ProgressNotices) -> Self {
        self.keep_alive.notices = Some(notices);
        self
    }

    /// Sets whether the caller gets the notices of its call too, as comments in the response.
    ///
    /// Only event streams get comments. The default is false.
    #[must_use]
    pub const fn comments(mut self, comments: bool) -> Self {
        self.keep_alive.comments = comments;
        self
    }

    /// Sends an early head if a request for a stream has no answer after `after`.
    ///
    /// The time `after` starts at the first `Pending`; with zero the head is sent right then. Until
    /// the answer comes, and whenever its stream is silent, the layer then keeps the stream alive,
    /// every 15 s unless [`keep_alive`](Self::keep_alive) is set.
    ///
    /// What the late answer's head would have said is lost to the caller: its status, so that an
    /// SDK does not repeat the request after a 503 by itself, and its headers, such as
    /// `x-served-model` and `retry-after`.
    ///
    /// The `"stream"` flag of a JSON object in the body decides whether the request is for a
    /// stream. The layer itself reads only a [`ReplayBody`](crate::ReplayBody); any other body it
    /// knows once an inner layer has buffered it. If no layer does, or the body is not a JSON
    /// object, a request is for a stream if it accepts `text/event-stream` and no JSON, because
    /// clients that take either accept both. Embeddings, images and counts of tokens are not
    /// streams. See [`streams_by`](Self::streams_by). A request with the extension
    /// [`WithoutEarlyHead`](crate::layers::terminal_response::WithoutEarlyHead) gets none.
    #[must_use]
    pub const fn early_head(mut self, after: Duration) -> Self {
        self.keep_alive.early_head = Some(after);
        self
    }

    /// Sets the function that decides which requests are for a stream, for an early head.
    ///
    /// The function replaces the rule of [`early_head`](Self::early_head). A caller that expects no
    /// stream would not understand an early head.
    #[must_use]
    pub const fn streams_by(mut self, streams: fn(&Parts) -> bool) -> Self {
        self.keep_alive.streams = Some(streams);
        self
    }

    /// Sets whether the layer asks an event stream only once it was woken; the default is false.
    ///
    /// hyper polls a body three times for each frame: two of them find `Pending`, and go through all
    /// layers. With `true` they stop here, at the cost of one allocation for each stream.
    ///
    /// Every limit of the stack must then stand within the [`RunLayer`](crate::RunLayer): the end of
    /// a limit outside of it would be seen at its wake, and not by a poll before that.
    /// [`AgentStack::server`](crate::AgentStack::server) has them there, and sets this to `true`.
    #[must_use]
    pub const fn once_woken(mut self, once_woken: bool) -> Self {
        self.is_gated = once_woken;
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
            layer: *self,
            unready: None,
        }
    }
}

/// The service of a [`TerminalResponseLayer`](crate::layers::terminal_response::TerminalResponseLayer).
#[derive(Debug)]
pub struct TerminalResponse<S> {
    inner: S,
    layer: TerminalResponseLayer,
    /// The error that `poll_ready` got from the inner service; the next call answers with it.
    unready: Option<BoxError>,
}

impl<S: Clone> Clone for TerminalResponse<S> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            layer: self.layer,
            // Not cloned: the error is the answer to one call only.
            unready: None,
        }
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for TerminalResponse<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>, Error: Into<BoxError>>,
    // The bound `'static` is for the downcast of the body to `ReplayBody`.
    ReqBody: 'static,
    ResBody: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Response = Response<TerminalResponseBody<S::Future, ResBody>>;
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
        let TerminalResponseLayer {
            statuses, is_gated, ..
        } = self.layer;
        if let Some(error) = self.unready.take() {
            return TerminalResponseFuture {
                call: Calling::Unready { error: Some(error) },
                caller,
                statuses,
                keep_alive: None,
                is_gated,
            };
        }
        let (keep_alive, request) = KeepAlive::of(&self.layer.keep_alive, request);
        let call = self.inner.call(request);
        let mut is_boxed = false;
        if let Some(keep_alive) = &keep_alive {
            keep_alive.suggest_notices();
            is_boxed = keep_alive.may_answer_early();
        }
        TerminalResponseFuture {
            call: match is_boxed {
                false => Calling::Inline { call },
                true => Calling::Boxed {
                    call: Some(Box::pin(call)),
                },
            },
            caller,
            statuses,
            keep_alive,
            is_gated,
        }
    }
}

pin_project! {
    /// The response future of [`TerminalResponse`](crate::layers::terminal_response::TerminalResponse).
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct TerminalResponseFuture<F> {
        #[pin]
        call: Calling<F>,
        caller: ErrorFormat,
        statuses: Statuses,
        // `None` if the layer does nothing for a caller that waits.
        keep_alive: Option<Box<KeepAlive>>,
        is_gated: bool,
    }
}

pin_project! {
    #[project = CallingProj]
    #[derive(Debug)]
    enum Calling<F> {
        Inline { #[pin] call: F },
        // Boxed, because after an early head the body continues the call.
        Boxed { call: Option<Pin<Box<F>>> },
        // The `poll_ready` of the inner service failed. With `None`, the state of any future that
        // was ready.
        Unready { error: Option<BoxError> },
    }
}

impl<F, B, E> Future for TerminalResponseFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes>,
{
    type Output = Result<Response<TerminalResponseBody<F, B>>, Infallible>;

    /// # Panics
    ///
    /// Panics if polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (caller, statuses) = (*this.caller, *this.statuses);
        let is_gated = *this.is_gated;
        let mut boxed = None;
        let polled = match this.call.as_mut().project() {
            CallingProj::Inline { call } => call.poll(cx),
            CallingProj::Boxed { call } => {
                let call = boxed.insert(call).as_mut();
                call.map_or(Poll::Pending, |call| call.as_mut().poll(cx))
            }
            CallingProj::Unready { error } => {
                let Some(error) = error.take() else {
                    panic!("polled after completion");
                };
                let answer = ErrorAnswer::of(&error, statuses, true);
                let answer = error_answer::build(caller, answer);
                return Poll::Ready(Ok(answer.map(TerminalResponseBody::made)));
            }
        };
        let answer = match polled {
            Poll::Ready(Ok(answer)) => {
                TerminalResponseBody::wrap(answer, caller, this.keep_alive.take(), is_gated)
            }
            Poll::Ready(Err(error)) => {
                let answer = ErrorAnswer::of(&error.into(), statuses, false);
                error_answer::build(caller, answer).map(TerminalResponseBody::made)
            }
            Poll::Pending => {
                // Before a head there is no stream to insert a comment into.
                let keep_alive = this.keep_alive.as_mut();
                let write = keep_alive.and_then(|keep_alive| keep_alive.pending(false, cx));
                let is_due = matches!(write, Some(Write::Head));
                let Some(call) = boxed.and_then(|call| call.take_if(|_| is_due)) else {
                    return Poll::Pending;
                };
                TerminalResponseBody::early(call, caller, this.keep_alive.take(), is_gated)
            }
        };
        this.call.set(Calling::Unready { error: None });
        Poll::Ready(Ok(answer))
    }
}
