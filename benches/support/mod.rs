//! What the benches measure: scripted bodies and services that do nothing.

#![allow(dead_code, reason = "each bench uses its part")]

use std::{
    cell::Cell,
    convert::Infallible,
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use tokio::runtime::{Builder, Runtime};
use tower::Service;

/// Frames a body, and so iterations a measured loop, has.
pub(crate) const FRAMES: usize = 1024;

/// A body of equal frames, each ready at once or after one `Pending`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Frames {
    frame: Bytes,
    left: usize,
    pending: bool,
    waited: bool,
}

impl Frames {
    pub(crate) fn ready(frame: &'static [u8]) -> Self {
        Self {
            frame: Bytes::from_static(frame),
            left: FRAMES,
            pending: false,
            waited: false,
        }
    }

    pub(crate) fn pending(frame: &'static [u8]) -> Self {
        Self {
            pending: true,
            ..Self::ready(frame)
        }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        if self.pending && !std::mem::replace(&mut self.waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.waited = false;
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(self.frame.clone()))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }
}

/// Where an upstream puts the request that it was called with, so that the next
/// iteration need not build one.
pub(crate) type Slot = Rc<Cell<Option<Request<()>>>>;

/// Answers with a body, at once or after one `Pending`.
#[derive(Clone)]
pub(crate) struct Upstream<B> {
    pub(crate) slot: Slot,
    pub(crate) body: B,
    pub(crate) events: bool,
    pub(crate) pending: bool,
}

#[derive(Debug)]
pub(crate) struct Answer<B> {
    body: Option<B>,
    events: bool,
    pending: bool,
}

impl<B: Body + Clone + Unpin> Service<Request<()>> for Upstream<B> {
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Answer<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Answer<B> {
        self.slot.set(Some(request));
        Answer {
            body: Some(self.body.clone()),
            events: self.events,
            pending: self.pending,
        }
    }
}

impl<B: Unpin> Future for Answer<B> {
    type Output = Result<Response<B>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if std::mem::take(&mut self.pending) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let body = self.body.take().expect("polled once after it was ready");
        let mut response = Response::new(body);
        if self.events {
            let events = http::HeaderValue::from_static("text/event-stream");
            response
                .headers_mut()
                .insert(http::header::CONTENT_TYPE, events);
        }
        Poll::Ready(Ok(response))
    }
}

/// Reads all frames of a body as a task would that is woken at once, without a
/// scheduler's own cost; answers its bytes. The end is not asked for.
pub(crate) fn drain<B>(body: B) -> usize
where
    B: Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let mut body = std::pin::pin!(body);
    let mut cx = Context::from_waker(Waker::noop());
    let mut bytes = 0;
    let mut frames = 0;
    while frames < FRAMES {
        if let Poll::Ready(frame) = body.as_mut().poll_frame(&mut cx) {
            let frame = frame.expect("a frame is left").expect("no limit passes");
            bytes += frame.data_ref().map_or(0, Bytes::len);
            frames += 1;
        }
    }
    bytes
}

pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
}

pub(crate) fn request(path: &'static str) -> Request<()> {
    Request::builder().uri(path).body(()).expect("a request")
}
