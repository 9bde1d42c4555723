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

use axum::{body::Body, extract::State, middleware::Next, response::Response};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Version, header};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::{
    runtime::Handle,
    task::unconstrained,
    time::{Instant, Sleep, sleep_until, timeout},
};
use tower_agent::BoxError;

#[cfg(test)]
mod tests;

/// How much of an upload is still read once its answer is known.
const LIMIT: usize = 32 * 1024 * 1024;

/// And for how long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The upload has sent nothing for too long.
#[derive(Debug)]
struct Stalled {
    idle: Duration,
}

/// A request's body that is read to its end, also if a handler drops it before, and that
/// may not be silent for too long.
struct Upload {
    body: Body,
    /// Nothing more comes of it.
    ended: bool,
    /// What is left of it is read once it is dropped.
    drains: bool,
    idle: Option<Duration>,
    /// Since when its reader waits.
    quiet: Option<Instant>,
    /// None until something had to be waited for.
    timer: Option<Pin<Box<Sleep>>>,
    stalled: Arc<AtomicBool>,
}

/// Watches over what is uploaded.
///
/// The answer that is given before the request was read must reach its client. hyper
/// closes an HTTP/1 connection on which a handler dropped half a body, and the kernel
/// resets it for what is unread: a client that is still sending sees the reset instead of
/// the answer, and takes it for a reason to try again. So the rest is read and dropped,
/// and the connection can be used again. What is over a bound is closed as ever. It begins
/// when the stack is done with the body, not before: until then it is the stack that
/// reads. HTTP/2 ends the one stream, and needs none of this.
///
/// An upload that sends no byte for `idle`, while a handler waits for it, fails; the
/// connection is of no more use then, on HTTP/2 the one stream.
pub(crate) async fn watch(
    State(idle): State<Option<Duration>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let is_one_of_many = request.version() >= Version::HTTP_2;
    let (request, stalled) = watched(idle, request);
    let mut answer = next.run(request).await;
    if stalled.load(Ordering::Acquire) && !is_one_of_many {
        let close = HeaderValue::from_static("close");
        answer.headers_mut().insert(header::CONNECTION, close);
    }
    answer
}

/// The status for a request whose upload stalled.
pub(crate) fn status(error: &BoxError) -> Option<StatusCode> {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&**error);
    while let Some(error) = cause {
        if error.is::<Stalled>() {
            return Some(StatusCode::REQUEST_TIMEOUT);
        }
        cause = error.source();
    }
    None
}

/// The request, and whether its upload has stalled.
fn watched(idle: Option<Duration>, request: Request<Body>) -> (Request<Body>, Arc<AtomicBool>) {
    let stalled = Arc::<AtomicBool>::default();
    if request.body().is_end_stream() {
        return (request, stalled);
    }
    let drains = request.version() < Version::HTTP_2;
    let flag = Arc::clone(&stalled);
    let request = request.map(|body| {
        Body::new(Upload {
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

impl Upload {
    /// The body has nothing yet: ready once it has been so for too long.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Duration> {
        let Some(idle) = self.idle else {
            return Poll::Pending;
        };
        let until = *self.quiet.get_or_insert_with(Instant::now) + idle;
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep_until(until)));
        // Every frame moves the deadline; the timer is moved when it fires.
        loop {
            // Outside of the task's budget: a timer that is pending for lack of it has
            // not registered its waker.
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

impl http_body::Body for Upload {
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
            // Now, for hyper closes the connection of a body that was not read.
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

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.drains || self.ended || self.is_end_stream() {
            return;
        }
        // Whoever drops it after the runtime has ended has no connection either.
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
