//! The response body with inserted comments, and the error if an early head was sent and no event
//! stream followed.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{outlet::Outlet, pulse::Pulse};
use crate::{
    error::BoxError,
    llm::failure::{Failure, FailureClass, NotAStream},
    run::{PollScope, Terminated},
    supervise::{FrameKind, Observer, ResponseFacts},
};

pin_project! {
    /// The response body of [`Progress`](crate::layers::progress::Progress).
    ///
    /// This body is the inner body, with comments between its events.
    ///
    /// After an early head the body first drives the call, and returns a failure of the call as
    /// its own error.
    #[derive(Debug)]
    pub struct ProgressBody<F, B> {
        #[pin]
        inner: ProgressInner<F, B>,
        outgoing: Outgoing,
    }

    impl<F, B> PinnedDrop for ProgressBody<F, B> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            this.outgoing.close(this.inner);
        }
    }
}

pin_project! {
    #[project = InnerProj]
    #[derive(Debug)]
    enum ProgressInner<F, B> {
        // The caller has an early head, and the call has not answered yet.
        Calling { call: Pin<Box<F>>, facts: ResponseFacts },
        Streaming { #[pin] body: B },
        // The answer that came after an early head is no event stream.
        Refused { #[pin] body: B, refused: Refused },
        Over,
    }
}

/// The state beside the inner body: notices, the observer, and inserted comments.
#[derive(Debug)]
struct Outgoing {
    pulse: Pulse,
    // `None` until the head of the call's answer has arrived.
    observer: Option<Observer>,
    // `Some` for an event stream into which comments may be inserted.
    outlet: Option<Box<Outlet>>,
}

impl<F, B: Body> ProgressBody<F, B> {
    pub(super) fn wrap(
        mut answer: Response<B>,
        pulse: Pulse,
        facts: ResponseFacts,
    ) -> Response<Self> {
        let events = facts.is_events(answer.status(), answer.headers());
        let outlet = events.then(|| Outlet::new(&pulse.layer)).flatten();
        let mut outgoing = Outgoing {
            pulse,
            observer: None,
            outlet,
        };
        outgoing.begin(&mut answer, facts);
        if let Some(outlet) = &outgoing.outlet {
            let marks = outlet.marks().clone();
            answer.extensions_mut().insert(marks);
            // The number of inserted comments is not known in advance.
            answer.headers_mut().remove(header::CONTENT_LENGTH);
        }
        answer.map(|body| Self {
            inner: ProgressInner::Streaming { body },
            outgoing,
        })
    }

    pub(super) const fn calling(
        call: Pin<Box<F>>,
        pulse: Pulse,
        facts: ResponseFacts,
        outlet: Box<Outlet>,
    ) -> Self {
        Self {
            inner: ProgressInner::Calling { call, facts },
            outgoing: Outgoing {
                pulse,
                observer: None,
                outlet: Some(outlet),
            },
        }
    }
}

impl Outgoing {
    /// Starts to observe the response, and takes its run if the call is not known yet.
    fn begin<B: Body>(&mut self, answer: &mut Response<B>, facts: ResponseFacts) {
        self.pulse.learn(answer.extensions());
        let mut observer = Observer::new(facts, answer);
        if let Some(run) = self.pulse.call() {
            observer.begin(run);
        }
        self.observer = Some(observer);
    }

    /// Observes a frame of the inner body that the caller gets next.
    ///
    /// # Errors
    ///
    /// [`Truncated`](crate::llm::dialect::Truncated) if trailers come before the stream's
    /// terminator.
    #[inline]
    fn frame(&mut self, frame: &Frame<Bytes>) -> Result<(), BoxError> {
        let Some(observer) = &mut self.observer else {
            return Ok(());
        };
        let Some(data) = frame.data_ref() else {
            observer.finish()?;
            observer.trailers();
            return Ok(());
        };
        observer.frame(data);
        let seen = observer.kind(Some(data));
        observer.wait();
        self.pulse.hand_on(seen == FrameKind::Progress);
        if let Some(outlet) = &mut self.outlet {
            outlet.pass(data, observer.judged());
        }
        Ok(())
    }

    /// Handles a `Pending` of the inner body; `Ready` holds a comment to insert now.
    fn pending(&mut self, scope: &PollScope, cx: &mut Context<'_>) -> Poll<Bytes> {
        let complete = self.observer.as_ref().is_some_and(Observer::is_complete);
        if complete {
            self.pulse.complete();
        }
        let outlet = self.outlet.as_deref_mut().filter(|_| !complete);
        match self.pulse.pending(scope, outlet, None, cx) {
            Some(comment) => Poll::Ready(comment),
            None => Poll::Pending,
        }
    }

    /// Drops the inner body, then records the observed response on the run and releases the timer.
    fn close<F, B>(&mut self, mut inner: Pin<&mut ProgressInner<F, B>>) {
        inner.set(ProgressInner::Over);
        if let (Some(observer), Some(run)) = (&mut self.observer, self.pulse.call()) {
            observer.report(run);
        }
        self.pulse.release();
    }
}

impl<F, B, E> Body for ProgressBody<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let outgoing = this.outgoing;
        loop {
            let scope = PollScope::enter(cx.waker(), outgoing.pulse.clock());
            let last = match this.inner.as_mut().project() {
                InnerProj::Over => return Poll::Ready(None),
                InnerProj::Calling { call, facts } => match call.as_mut().poll(cx) {
                    Poll::Ready(Ok(answer)) => {
                        drop(scope);
                        let facts = std::mem::take(facts);
                        let next = late(outgoing, answer, facts);
                        this.inner.set(next);
                        continue;
                    }
                    Poll::Ready(Err(error)) => Some(error.into()),
                    Poll::Pending => {
                        let comment = ready!(outgoing.pending(&scope, cx));
                        return Poll::Ready(Some(Ok(Frame::data(comment))));
                    }
                },
                InnerProj::Streaming { body } => match body.poll_frame(cx) {
                    Poll::Ready(Some(Ok(frame))) => match outgoing.frame(&frame) {
                        Ok(()) => return Poll::Ready(Some(Ok(frame))),
                        Err(cut) => Some(cut),
                    },
                    Poll::Ready(Some(Err(error))) => Some(error.into()),
                    Poll::Ready(None) => {
                        let cut = outgoing.observer.as_ref().map_or(Ok(()), Observer::finish);
                        cut.err().map(Into::into)
                    }
                    Poll::Pending => {
                        let comment = ready!(outgoing.pending(&scope, cx));
                        return Poll::Ready(Some(Ok(Frame::data(comment))));
                    }
                },
                InnerProj::Refused { body, refused } => match refused.poll(body, cx) {
                    Poll::Ready(error) => Some(error),
                    Poll::Pending => {
                        let comment = ready!(outgoing.pending(&scope, cx));
                        return Poll::Ready(Some(Ok(Frame::data(comment))));
                    }
                },
            };
            drop(scope);
            outgoing.close(this.inner.as_mut());
            return Poll::Ready(last.map(Err));
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            ProgressInner::Over => true,
            ProgressInner::Streaming { body } => {
                let observer = self.outgoing.observer.as_ref();
                body.is_end_stream() && observer.is_none_or(|observer| observer.finish().is_ok())
            }
            _ => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            ProgressInner::Over => SizeHint::with_exact(0),
            ProgressInner::Streaming { body } if self.outgoing.outlet.is_none() => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

/// The next state of the body, once the call has answered after an early head.
fn late<F, B>(
    outgoing: &mut Outgoing,
    mut answer: Response<B>,
    facts: ResponseFacts,
) -> ProgressInner<F, B>
where
    B: Body<Data = Bytes>,
{
    if facts.is_events(answer.status(), answer.headers()) {
        outgoing.begin(&mut answer, facts);
        let body = answer.into_body();
        return ProgressInner::Streaming { body };
    }
    outgoing.pulse.learn(answer.extensions());
    let (head, body) = answer.into_parts();
    let refused = Refused::new(head.status, head.headers);
    ProgressInner::Refused { body, refused }
}

/// The number of bytes of an error body after which the layer stops reading.
const MAX_BODY: usize = 64 * 1024;

/// An answer after an early head that is no event stream, which becomes an error.
///
/// The layer reads the answer's body for the message of that error.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    headers: HeaderMap,
    read: Vec<u8>,
}

impl Refused {
    pub(super) const fn new(status: StatusCode, headers: HeaderMap) -> Self {
        Self {
            status,
            headers,
            read: Vec::new(),
        }
    }

    /// Reads the body of a failed answer, and returns the error for the caller.
    pub(super) fn poll<B>(&mut self, mut body: Pin<&mut B>, cx: &mut Context<'_>) -> Poll<BoxError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        // A successful answer has no error in its body, so that body is not read.
        while !self.status.is_success() {
            match ready!(body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    self.read.extend_from_slice(&data);
                    if self.read.len() > MAX_BODY {
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
        Poll::Ready(self.error().into())
    }

    fn error(&self) -> NotAStream {
        // The time is only needed for a date in `retry-after`, and no retry can follow here.
        let now = SystemTime::UNIX_EPOCH;
        let failure = Failure::of_answer(self.status, &self.headers, &self.read, now);
        let failure = failure.unwrap_or(Failure::new(FailureClass::Server));
        NotAStream::new(self.status, failure.class, failure.message)
    }
}
