use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;

use crate::{
    body::{Buffering, ReplayBody},
    error::BoxError,
    run::{PauseGuard, Run},
};

pin_project! {
    /// A request whose body is read to its end, before anybody is asked.
    #[derive(Debug)]
    pub(crate) struct Upload<Q> {
        #[pin]
        body: Buffering<Q>,
        head: Option<Parts>,
        // The caller's time, not the upstream's silence.
        pause: Option<PauseGuard>,
    }
}

impl<Q: Body + 'static> Upload<Q> {
    /// Holds at most `limit` bytes of a body that is not kept already.
    pub(crate) fn new(request: Request<Q>, limit: usize) -> Self {
        let (head, body) = request.into_parts();
        Self {
            body: Buffering::new(body, limit),
            head: Some(head),
            pause: None,
        }
    }
}

impl<Q> Upload<Q>
where
    Q: Body<Data = Bytes>,
    Q::Error: Into<BoxError>,
{
    /// The request, whole; errors are those of [`Buffering`].
    ///
    /// # Panics
    ///
    /// If polled again after it was ready.
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        run: &Run,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Request<ReplayBody>, BoxError>> {
        let this = self.project();
        let Poll::Ready(body) = this.body.poll(cx) else {
            this.pause.get_or_insert_with(|| run.pause());
            run.node().payload.set_refused(true);
            return Poll::Pending;
        };
        *this.pause = None;
        run.node().payload.set_refused(body.is_err());
        let Some(head) = this.head.take() else {
            panic!("a body was read twice");
        };
        Poll::Ready(body.map(|body| Request::from_parts(head, body)))
    }
}
