use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Response, header};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{outlet::Outlet, pulse::Pulse, refused::Refused};
use crate::{
    error::BoxError,
    run::PollScope,
    supervise::{FrameKind, Observer, ResponseFacts},
};

pin_project! {
    /// The response body of [`Progress`](crate::layers::progress::Progress): the inner one, with
    /// comments between its events.
    ///
    /// Behind an early head it drives the call first; what fails then is its error.
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
        // The head was sent before there was one.
        Calling { call: Pin<Box<F>>, facts: ResponseFacts },
        Streaming { #[pin] body: B },
        // What came behind an early head was no stream.
        Refused { #[pin] body: B, refused: Refused },
        Over,
    }
}

/// What is known of the answer, and goes on beside it.
#[derive(Debug)]
struct Outgoing {
    pulse: Pulse,
    // None before an answer came.
    tap: Option<Observer>,
    // Of a stream of events into which comments may be put.
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
            tap: None,
            outlet,
        };
        outgoing.begin(&mut answer, facts);
        if let Some(outlet) = &outgoing.outlet {
            let judged = outlet.judged().clone();
            answer.extensions_mut().insert(judged);
            // Nobody knows how many comments there will be.
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
                tap: None,
                outlet: Some(outlet),
            },
        }
    }
}

impl Outgoing {
    /// The answer has come.
    fn begin<B: Body>(&mut self, answer: &mut Response<B>, facts: ResponseFacts) {
        self.pulse.learn(answer.extensions());
        let mut tap = Observer::new(facts, answer);
        if let Some(run) = self.pulse.call() {
            tap.begin(run);
        }
        self.tap = Some(tap);
    }

    /// A frame is about to be handed on.
    ///
    /// # Errors
    ///
    /// If the stream was cut.
    #[inline]
    fn frame(&mut self, frame: &Frame<Bytes>) -> Result<(), BoxError> {
        let Some(tap) = &mut self.tap else {
            return Ok(());
        };
        let Some(data) = frame.data_ref() else {
            tap.finish()?;
            tap.trailers();
            return Ok(());
        };
        let seen = tap.frame(data);
        self.pulse.hand_on(seen == FrameKind::Progress);
        if let Some(outlet) = &mut self.outlet {
            outlet.pass(data, tap.judged());
        }
        Ok(())
    }

    /// Nothing comes from below: a comment goes out, if it is time for one.
    fn pending(&mut self, turn: &PollScope, cx: &mut Context<'_>) -> Poll<Bytes> {
        let complete = self.tap.as_ref().is_some_and(Observer::is_complete);
        if complete {
            self.pulse.complete();
        }
        let outlet = self.outlet.as_deref_mut().filter(|_| !complete);
        match self.pulse.pending(turn, outlet, None, cx) {
            Some(comment) => Poll::Ready(comment),
            None => Poll::Pending,
        }
    }

    /// Nothing more is read: what is inside goes first.
    fn close<F, B>(&mut self, mut inner: Pin<&mut ProgressInner<F, B>>) {
        inner.set(ProgressInner::Over);
        if let (Some(tap), Some(run)) = (&mut self.tap, self.pulse.call()) {
            tap.report(run);
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
            let turn = PollScope::enter(cx.waker(), outgoing.pulse.clock());
            let last = match this.inner.as_mut().project() {
                InnerProj::Over => return Poll::Ready(None),
                InnerProj::Calling { call, facts } => match call.as_mut().poll(cx) {
                    Poll::Ready(Ok(answer)) => {
                        drop(turn);
                        let facts = std::mem::take(facts);
                        let next = late(outgoing, answer, facts);
                        this.inner.set(next);
                        continue;
                    }
                    Poll::Ready(Err(error)) => Some(error.into()),
                    Poll::Pending => {
                        let comment = ready!(outgoing.pending(&turn, cx));
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
                        let cut = outgoing.tap.as_ref().map_or(Ok(()), Observer::finish);
                        cut.err().map(Into::into)
                    }
                    Poll::Pending => {
                        let comment = ready!(outgoing.pending(&turn, cx));
                        return Poll::Ready(Some(Ok(Frame::data(comment))));
                    }
                },
                InnerProj::Refused { body, refused } => match refused.poll(body, cx) {
                    Poll::Ready(error) => Some(error),
                    Poll::Pending => {
                        let comment = ready!(outgoing.pending(&turn, cx));
                        return Poll::Ready(Some(Ok(Frame::data(comment))));
                    }
                },
            };
            drop(turn);
            outgoing.close(this.inner.as_mut());
            return Poll::Ready(last.map(Err));
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            ProgressInner::Over => true,
            ProgressInner::Streaming { body } => {
                let tap = self.outgoing.tap.as_ref();
                body.is_end_stream() && tap.is_none_or(|tap| tap.finish().is_ok())
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

/// The answer came behind an early head.
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
