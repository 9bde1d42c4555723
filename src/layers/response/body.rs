use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header, response::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{answer::ErrorFormat, stream::Events};
use crate::{
    body::{content_length, has_body, unframe},
    error::BoxError,
    run::Run,
    supervise::{ResponseMarks, Stream},
};

pin_project! {
    /// The response body of [`TerminalResponse`](crate::layers::response::TerminalResponse).
    #[derive(Debug)]
    pub struct TerminalResponseBody<B> {
        #[pin]
        inner: Option<B>,
        // The state of a stream of events.
        events: Option<Box<Events>>,
        // The body of an answer that this layer made.
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
            // An error event may follow, so the length is not known.
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

/// Removes a `Content-Length` that is not the body's.
///
/// A server writes it unchecked, and the bytes beyond it would answer the caller's next
/// request.
fn check_length(parts: &mut Parts, size: &SizeHint, caller: ErrorFormat) {
    unframe(&mut parts.headers);
    if !parts.headers.contains_key(header::CONTENT_LENGTH) {
        return;
    }
    let said = content_length(&parts.headers);
    // Answers to HEAD and a 304 have the length of a body that is not sent.
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
                // Drop upstream now; the caller may hold this body for a while.
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
