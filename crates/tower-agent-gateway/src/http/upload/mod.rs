//! Ends uploads that stall, and drains those that a handler left unread.

use std::{
    error::Error,
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Version, header};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use pin_project_lite::pin_project;
use tokio::{
    runtime::Handle,
    task::unconstrained,
    time::{Instant, Sleep, sleep_until, timeout},
};
use tower::{Layer, Service};
use tower_agent::BoxError;

#[cfg(test)]
mod tests;

/// The most bytes of an upload that are drained after its handler dropped it.
const LIMIT: usize = 32 * 1024 * 1024;

/// The longest time for which a dropped upload is drained.
const PATIENCE: Duration = Duration::from_secs(10);

/// The error of an upload that was silent for too long.
#[derive(Debug)]
struct Stalled {
    idle: Duration,
}

/// A request's body with an idle timeout. If a handler drops the body early, the rest is drained,
/// on HTTP/1 only.
struct UploadBody {
    body: Body,
    /// Whether the body has ended or failed.
    ended: bool,
    /// Whether the drop drains the rest; on HTTP/1 only.
    drains: bool,
    idle: Option<Duration>,
    /// When the reader's present wait began.
    quiet: Option<Instant>,
    /// The timer of the idle timeout; `None` until the first wait.
    timer: Option<Pin<Box<Sleep>>>,
    stalled: Arc<AtomicBool>,
}

/// Drains uploads that a handler left unread, and ends those that stall.
///
/// An early answer must reach its client. hyper closes an HTTP/1 connection on which a handler
/// dropped half a body, and the kernel resets it for the unread bytes. A client that is still
/// sending sees the reset instead of the answer.
///
/// So on HTTP/1 the rest of a dropped body is read and discarded, up to bounds of bytes and time,
/// and the connection can be reused. HTTP/2 resets the one stream, and needs no draining.
///
/// An upload that sends no byte for `idle`, while a handler waits for it, fails. On HTTP/1 its
/// connection then closes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadLayer {
    idle: Option<Duration>,
}

/// The service of [`UploadLayer`].
#[derive(Clone, Debug)]
pub(crate) struct Uploads<S> {
    inner: S,
    idle: Option<Duration>,
}

pin_project! {
    /// The response future of [`Uploads`].
    pub(crate) struct UploadFuture<F> {
        #[pin]
        future: F,
        // The flag that the upload has stalled. `None` for a request of HTTP/2, because its
        // connection also serves others.
        stalled: Option<Arc<AtomicBool>>,
    }
}

impl UploadLayer {
    pub(crate) const fn new(idle: Option<Duration>) -> Self {
        Self { idle }
    }
}

impl<S> Layer<S> for UploadLayer {
    type Service = Uploads<S>;

    fn layer(&self, inner: S) -> Uploads<S> {
        let idle = self.idle;
        Uploads { inner, idle }
    }
}

impl<S: Service<Request<Body>, Response = Response>> Service<Request<Body>> for Uploads<S> {
    type Response = Response;
    type Error = S::Error;
    type Future = UploadFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_one_of_many = request.version() >= Version::HTTP_2;
        let (request, stalled) = watched(self.idle, request);
        UploadFuture {
            future: self.inner.call(request),
            stalled: (!is_one_of_many).then_some(stalled),
        }
    }
}

impl<F, E> Future for UploadFuture<F>
where
    F: Future<Output = Result<Response, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let mut answer = ready!(this.future.poll(cx))?;
        let stalled = this.stalled.as_ref();
        if stalled.is_some_and(|stalled| stalled.load(Ordering::Acquire)) {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
        Poll::Ready(Ok(answer))
    }
}

/// The status for the error of a stalled upload; `None` for any other error.
pub(crate) fn stall_status(error: &BoxError) -> Option<StatusCode> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&**error);
    while let Some(error) = cause {
        if error.is::<Stalled>() {
            return Some(StatusCode::REQUEST_TIMEOUT);
        }
        cause = error.source();
    }
    None
}

/// Wraps the request's body; the flag becomes true if the upload stalls.
fn watched(idle: Option<Duration>, request: Request<Body>) -> (Request<Body>, Arc<AtomicBool>) {
    let stalled = Arc::<AtomicBool>::default();
    if request.body().is_end_stream() {
        return (request, stalled);
    }
    let drains = request.version() < Version::HTTP_2;
    let flag = Arc::clone(&stalled);
    let request = request.map(|body| {
        Body::new(UploadBody {
            body,
            ended: false,
            drains,
            idle,
            quiet: None,
            timer: None,
            stalled: flag,
        })
    });
    (request, stalled)
}

impl UploadBody {
    /// Ready when a body that is `Pending` has been so for the idle timeout.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        let Some(idle) = self.idle else {
            return Poll::Pending;
        };
        let until = *self.quiet.get_or_insert_with(Instant::now) + idle;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        // Every frame moves the deadline; the timer follows only when it fires, which is
        // cheaper.
        loop {
            // The timer is polled outside tokio's coop budget: a timer that is `Pending` for lack
            // of budget has not registered its waker.
            ready!(Pin::new(&mut unconstrained(timer.as_mut())).poll(cx));
            if timer.deadline() >= until {
                return Poll::Ready(idle);
            }
            timer.as_mut().reset(until);
        }
    }
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing was uploaded for {:?}", self.idle)
    }
}

impl Error for Stalled {}

impl http_body::Body for UploadBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if polled.is_pending() {
            let idle = ready!(self.poll_stalled(cx));
            self.ended = true;
            self.stalled.store(true, Ordering::Release);
            // The body is dropped before the answer, so that hyper sees an unread body and closes
            // the connection.
            self.body = Body::empty();
            return Poll::Ready(Some(Err(axum::Error::new(Stalled { idle }))));
        }
        self.quiet = None;
        self.ended = matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for UploadBody {
    fn drop(&mut self) {
        if !self.drains || self.ended || self.is_end_stream() {
            return;
        }
        // Without a runtime there is no connection to keep either.
        if let Ok(runtime) = Handle::try_current() {
            let rest = std::mem::take(&mut self.body);
            drop(runtime.spawn(timeout(PATIENCE, drain(rest))));
        }
    }
}

async fn drain(mut body: Body) {
    let mut left = LIMIT;
    while let Some(Ok(frame)) = body.frame().await {
        let read = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(read) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}
