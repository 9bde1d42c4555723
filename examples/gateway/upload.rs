use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http::{Request, Version};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::{runtime::Handle, time::timeout};

#[cfg(test)]
mod tests;

/// How much of an upload is still read once its answer is known.
const LIMIT: usize = 32 * 1024 * 1024;

/// And for how long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A request's body that is read to its end, whoever drops it before.
struct Upload {
    body: Body,
    /// Nothing more comes of it.
    ended: bool,
}

/// Lets an answer that is given before the request was read reach its client.
///
/// hyper closes an HTTP/1 connection on which somebody dropped half a body, and
/// the kernel resets it for what is unread: a client that is still sending sees
/// the reset instead of the answer, and takes it for a reason to try again. So
/// the rest is read and dropped, and the connection can be used again. What is
/// over a bound is closed as ever.
///
/// It begins when the stack is done with the body, not before: until then it
/// is the stack that reads. HTTP/2 ends the one stream, and needs none of this.
pub(crate) async fn read_to_end(request: Request<Body>) -> Request<Body> {
    if request.version() >= Version::HTTP_2 || request.body().is_end_stream() {
        return request;
    }
    request.map(|body| Body::new(Upload { body, ended: false }))
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
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
        if self.ended || self.is_end_stream() {
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
