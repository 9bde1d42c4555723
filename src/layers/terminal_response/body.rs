//! The response body of the layer: whole events, inserted comments, and the call that goes on
//! after an early head.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderValue, Response, StatusCode, header, response::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{
    error_answer::ErrorFormat,
    keep_alive::{KeepAlive, Write},
    stream::CallerStream,
};
use crate::{
    attempt::MAX_ERROR,
    body::{WakeGate, content_length, has_body, unframe},
    error::BoxError,
    headers::X_RUN_ID,
    llm::{
        NotAStream,
        failure::{Failure, FailureClass},
        stated_code,
    },
    lock::Lock,
    run::{NotCounted, Run, Terminated},
    supervise::{MarkingReader, ResponseMarks},
};

pin_project! {
    /// The response body of [`TerminalResponse`](crate::layers::terminal_response::TerminalResponse).
    ///
    /// If the layer has sent a head before the call's answer came, the body first drives the call to
    /// its answer.
    #[derive(Debug)]
    pub struct TerminalResponseBody<F, B> {
        #[pin]
        inner: Inner<F, B>,
        // The state of an event stream; `None` for any other body.
        events: Option<Box<CallerStream>>,
        // `None` if the layer does nothing for a caller that waits.
        keep_alive: Option<Box<KeepAlive>>,
        // `None` of what is not a stream, and once that is over.
        gate: Option<GatedCall>,
    }
}

pin_project! {
    #[project = InnerProj]
    #[derive(Debug)]
    enum Inner<F, B> {
        // An answer that this layer made.
        Made { body: Bytes },
        Streaming { #[pin] body: B },
        // The caller has an early head, and the call has not answered yet. The `Lock` is never
        // locked: it only makes the body `Sync`.
        Calling { call: Lock<Pin<Box<F>>> },
        // The answer that came after an early head is not an event stream.
        Refused { #[pin] body: B, refused: Refused },
        Over,
    }
}

impl<F, B> TerminalResponseBody<F, B> {
    pub(super) const fn made(body: Bytes) -> Self {
        Self {
            inner: Inner::Made { body },
            events: None,
            keep_alive: None,
            gate: None,
        }
    }

    pub(super) fn wrap(
        answer: Response<B>,
        caller: ErrorFormat,
        mut keep_alive: Option<Box<KeepAlive>>,
        is_gated: bool,
    ) -> Response<Self>
    where
        B: Body,
    {
        let (mut parts, body) = answer.into_parts();
        if let Some(keep_alive) = &mut keep_alive {
            keep_alive.answered(&parts.extensions);
        }
        check_length(&mut parts, &body.size_hint(), caller);
        let events = is_stream(caller, parts.status, &parts.headers).then(|| {
            // The length is not known, because an error event may follow.
            parts.headers.remove(header::CONTENT_LENGTH);
            set_stream_headers(&mut parts.headers);
            let events = Box::new(CallerStream::new(caller.dialect, &parts.extensions));
            if keep_alive.as_ref().is_some_and(|it| it.inserts())
                && parts.extensions.remove::<ResponseMarks>().is_some()
            {
                // Inserted comments shift the offsets of the marks. A layer wrongly placed outside
                // reads the stream anew, and must not count its usage again.
                parts.extensions.insert(NotCounted);
            }
            events
        });
        let is_gated = is_gated && events.is_some();
        let body = Self {
            inner: Inner::Streaming { body },
            events,
            keep_alive,
            gate: GatedCall::of(&parts.extensions, is_gated),
        };
        Response::from_parts(parts, body)
    }

    /// Makes an early head, with a body that continues the call.
    pub(super) fn early(
        call: Pin<Box<F>>,
        caller: ErrorFormat,
        keep_alive: Option<Box<KeepAlive>>,
        is_gated: bool,
    ) -> Response<Self> {
        let run = keep_alive.as_ref().and_then(|keep_alive| keep_alive.call());
        let mut head = Response::new(());
        let headers = head.headers_mut();
        let events = HeaderValue::from_static("text/event-stream");
        headers.insert(header::CONTENT_TYPE, events);
        set_stream_headers(headers);
        if let Some(run) = run {
            // A `RunId` only has characters that are valid in a header.
            if let Ok(id) = HeaderValue::try_from(run.id().to_string()) {
                headers.insert(X_RUN_ID, id);
            }
            head.extensions_mut().insert(run);
        }
        let events = CallerStream::new(caller.dialect, head.extensions());
        let gate = GatedCall::of(head.extensions(), is_gated);
        head.extensions_mut().insert(NotCounted);
        head.map(|()| Self {
            inner: Inner::Calling {
                call: Lock::new(call),
            },
            events: Some(Box::new(events)),
            keep_alive,
            gate,
        })
    }
}

/// A call whose stream is asked once it was woken, or once the call has ended.
///
/// A poll may see an end that is stored before its wake has come.
#[derive(Debug)]
struct GatedCall {
    call: Run,
    gate: WakeGate,
}

impl GatedCall {
    fn of(extensions: &Extensions, is_gated: bool) -> Option<Self> {
        let call = extensions.get::<Run>().filter(|_| is_gated)?;
        Some(Self {
            call: call.clone(),
            gate: WakeGate::new(),
        })
    }

    fn is_closed(&self, cx: &Context<'_>) -> bool {
        !self.call.node().is_over() && self.gate.is_closed(cx)
    }
}

fn is_stream(caller: ErrorFormat, status: StatusCode, headers: &HeaderMap) -> bool {
    has_body(caller.head, status) && MarkingReader::is_events(status, headers)
}

fn set_stream_headers(headers: &mut HeaderMap) {
    let no_cache = HeaderValue::from_static("no-cache");
    headers.insert(header::CACHE_CONTROL, no_cache);
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
}

/// Removes a `transfer-encoding`, and a `Content-Length` that the body's size does not confirm. In
/// an answer to HEAD and in a 304 the size is not compared.
///
/// A server sends a `Content-Length` unchecked: an upstream's bytes beyond the length would count
/// as the answer to the caller's next request.
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

impl<F, B, E> Body for TerminalResponseBody<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.project();
        let (mut inner, events, keep_alive) = (this.inner, this.events, this.keep_alive);
        let is_streaming = matches!(*inner, Inner::Streaming { .. });
        let Some(gated) = this.gate.as_mut().filter(|_| is_streaming) else {
            return poll_open(inner, events, keep_alive, cx);
        };
        if gated.is_closed(cx) {
            return Poll::Pending;
        }
        let ask = |cx: &mut Context<'_>| poll_open(inner.as_mut(), events, keep_alive, cx);
        let polled = gated.gate.poll(cx, ask);
        if matches!(*inner, Inner::Over) {
            *this.gate = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match (&self.events, &self.inner) {
            (Some(events), Inner::Over) => events.is_empty(),
            (None, Inner::Over) => true,
            (None, Inner::Streaming { body }) => body.is_end_stream(),
            _ => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.events, &self.inner) {
            (None, Inner::Made { body }) => SizeHint::with_exact(body.len() as u64),
            (None, Inner::Streaming { body }) => body.size_hint(),
            (None, Inner::Over) => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}

/// Asks the call, or its body.
fn poll_open<F, B, E>(
    mut inner: Pin<&mut Inner<F, B>>,
    events: &mut Option<Box<CallerStream>>,
    keep_alive: &mut Option<Box<KeepAlive>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BoxError>>>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes, Error: Into<BoxError>>,
{
    loop {
        if let Some(events) = events.as_mut() {
            if let Some(frame) = events.next() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if events.is_broken() {
                // The caller has an error, and needs no more of the upstream.
                inner.set(Inner::Over);
                *keep_alive = None;
            }
        }
        let polled = match inner.as_mut().project() {
            InnerProj::Over => return Poll::Ready(None),
            InnerProj::Made { body } => {
                let body = std::mem::take(body);
                inner.set(Inner::Over);
                return Poll::Ready(Some(Ok(Frame::data(body))));
            }
            InnerProj::Streaming { body } => {
                let polled = body.poll_frame(cx);
                // The frame is matched by reference: it is large, and most frames pass
                // unchanged.
                if let (Poll::Ready(Some(Ok(frame))), Some(events)) = (&polled, events.as_mut()) {
                    if frame.data_ref().is_some_and(|data| events.pass(data)) {
                        sent(keep_alive, events);
                        return polled.map_err(Into::into);
                    }
                }
                polled.map_err(Into::into)
            }
            InnerProj::Calling { call } => match call.get_mut().as_mut().poll(cx) {
                Poll::Ready(Ok(answer)) => {
                    let next = late(answer, events.as_deref_mut(), keep_alive.as_deref_mut());
                    inner.set(next);
                    continue;
                }
                Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error.into()))),
                Poll::Pending => Poll::Pending,
            },
            InnerProj::Refused { body, refused } => {
                let refusal = refused.poll(body, keep_alive.as_deref(), cx);
                refusal.map(|error| Some(Err(error)))
            }
        };
        let Poll::Ready(frame) = polled else {
            let events = events.as_deref();
            let comment = ready!(pending(events, keep_alive, cx));
            return Poll::Ready(Some(Ok(Frame::data(comment))));
        };
        if !matches!(frame, Some(Ok(_))) {
            // Drop the upstream now, because the caller may hold this body for a while.
            inner.set(Inner::Over);
            *keep_alive = None;
        }
        let Some(events) = events else {
            if let Some(keep_alive) = keep_alive {
                keep_alive.sent(true);
            }
            return Poll::Ready(frame);
        };
        match frame {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    events.push(data);
                    sent(keep_alive, events);
                }
                Err(trailers) => {
                    inner.set(Inner::Over);
                    *keep_alive = None;
                    events.end(Some(trailers));
                }
            },
            Some(Err(error)) => events.fail(&error),
            None => events.end(None),
        }
    }
}

/// Handles a frame of the inner body, for a caller that waits.
#[inline]
fn sent(keep_alive: &mut Option<Box<KeepAlive>>, events: &mut CallerStream) {
    if let Some(keep_alive) = keep_alive {
        keep_alive.sent(events.has_progressed());
    }
}

/// Handles a `Pending` of the inner body; `Ready` holds a comment to insert now.
fn pending(
    events: Option<&CallerStream>,
    keep_alive: &mut Option<Box<KeepAlive>>,
    cx: &mut Context<'_>,
) -> Poll<Bytes> {
    if events.is_some_and(CallerStream::has_end) {
        *keep_alive = None;
    }
    let Some(keep_alive) = keep_alive else {
        return Poll::Pending;
    };
    let between = events.filter(|events| events.is_between());
    match (keep_alive.pending(between.is_some(), cx), between) {
        (Some(Write::Comment(comment)), _) => Poll::Ready(comment),
        (Some(Write::KeepAlive), Some(events)) => Poll::Ready(events.keep_alive()),
        _ => Poll::Pending,
    }
}

/// The next state of the body, once the call has answered after an early head.
fn late<F, B>(
    answer: Response<B>,
    events: Option<&mut CallerStream>,
    keep_alive: Option<&mut KeepAlive>,
) -> Inner<F, B> {
    let (head, body) = answer.into_parts();
    if let Some(keep_alive) = keep_alive {
        keep_alive.answered(&head.extensions);
    }
    if MarkingReader::is_events(head.status, &head.headers) {
        if let Some(events) = events {
            events.take_marks_of(&head.extensions);
        }
        return Inner::Streaming { body };
    }
    let refused = Refused {
        status: head.status,
        headers: head.headers,
        read: Vec::new(),
    };
    Inner::Refused { body, refused }
}

/// An answer after an early head that is not an event stream, which becomes an error.
///
/// If the status is not a 2xx, the layer reads the body for the message of that error.
#[derive(Debug)]
struct Refused {
    status: StatusCode,
    headers: HeaderMap,
    read: Vec<u8>,
}

impl Refused {
    /// Reads the body of a failed answer, and returns the error for the caller.
    fn poll<B>(
        &mut self,
        mut body: Pin<&mut B>,
        keep_alive: Option<&KeepAlive>,
        cx: &mut Context<'_>,
    ) -> Poll<BoxError>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>>,
    {
        // Only the body of a failed answer is expected to hold an error message.
        while !self.status.is_success() {
            match ready!(body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    self.read.extend_from_slice(&data);
                    if self.read.len() > MAX_ERROR {
                        break;
                    }
                }
                Some(Err(error)) => {
                    let error = error.into();
                    if Terminated::find(&*error).is_some() {
                        return Poll::Ready(error);
                    }
                    break;
                }
                None => break,
            }
        }
        let error = self.error();
        if let Some(keep_alive) = keep_alive {
            keep_alive.fail(error.class);
        }
        Poll::Ready(error.into())
    }

    fn error(&self) -> NotAStream {
        // The time is only needed for a date in `retry-after`, and no retry can follow here.
        let now = SystemTime::UNIX_EPOCH;
        let failure = Failure::of_answer(self.status, &self.headers, &self.read, now);
        let failure = failure.unwrap_or(Failure::new(FailureClass::Server));
        NotAStream {
            status: self.status,
            class: failure.class,
            code: stated_code(&self.read),
            message: failure.message,
        }
    }
}
