//! Buffers a request body before the inner service is called; step windows pause meanwhile.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, request::Parts};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{
    body::{Buffering, ReplayBody},
    error::BoxError,
    run::{CallSlot, PauseGuard, Run},
};

/// The part of a layer that inspects a fully buffered request, and may answer it.
///
/// The type `A` is the response of the inner service.
pub trait RequestReader<A> {
    /// The type of the layer's response.
    type Answer;

    /// The node to which the request belongs.
    fn run(&self) -> &Run;

    /// Inspects the request. A `Some` is the layer's answer; the inner service is not called then.
    fn read(&self, request: &Request<ReplayBody>) -> Option<Self::Answer>;

    /// Converts the response of the inner service into the layer's.
    fn pass(answer: A) -> Self::Answer;
}

pin_project! {
    /// The future that buffers a request, then calls the inner service.
    ///
    /// The future makes no call if the upload fails, if the node has ended or is closing after the
    /// upload, or if the layer answers the request itself.
    #[derive(Debug)]
    pub struct BufferedCall<S, Q, R>
    where
        S: Service<Request<ReplayBody>>,
    {
        #[pin]
        stage: BufferedStage<S::Future, Q>,
        service: S,
        reader: R,
    }
}

pin_project! {
    #[project = BufferedStageProj]
    #[derive(Debug)]
    enum BufferedStage<F, Q> {
        Upload {
            #[pin]
            upload: Upload<Q>,
        },
        Calling {
            #[pin]
            future: F,
        },
    }
}

impl<S, Q, R> BufferedCall<S, Q, R>
where
    S: Service<Request<ReplayBody>>,
    Q: Body + 'static,
{
    /// Starts to buffer the request, with at most `max_body` bytes. The inner service gets a body
    /// that is a [`ReplayBody`] already as it is, unread and whatever its length.
    pub(crate) fn new(service: S, reader: R, request: Request<Q>, max_body: usize) -> Self {
        let upload = Upload::new(request, max_body);
        Self {
            stage: BufferedStage::Upload { upload },
            service,
            reader,
        }
    }
}

impl<S, Q, R> Future for BufferedCall<S, Q, R>
where
    S: Service<Request<ReplayBody>>,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes>,
    Q::Error: Into<BoxError>,
    R: RequestReader<S::Response>,
{
    type Output = Result<R::Answer, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                BufferedStageProj::Upload { upload } => {
                    let request = ready!(upload.poll(this.reader.run(), cx))?;
                    // A deadline may have passed during the upload, and `read` below
                    // may end the run.
                    if let Err(ended) = this.reader.run().check() {
                        return Poll::Ready(Err(ended.into()));
                    }
                    if let Some(answer) = this.reader.read(&request) {
                        return Poll::Ready(Ok(answer));
                    }
                    if let Err(ended) = this.reader.run().check() {
                        return Poll::Ready(Err(ended.into()));
                    }
                    let future = this.service.call(request);
                    this.stage.set(BufferedStage::Calling { future });
                }
                BufferedStageProj::Calling { future } => {
                    let answer = ready!(future.poll(cx)).map_err(Into::into);
                    return Poll::Ready(answer.map(R::pass));
                }
            }
        }
    }
}

pin_project! {
    /// A request with a body that is buffered before the layer makes a call.
    #[derive(Debug)]
    pub(crate) struct Upload<Q> {
        #[pin]
        body: Buffering<Q>,
        head: Option<Parts>,
        // The pause of step windows while the request's body is `Pending`: an upload is
        // no silence of the upstream.
        pause: Option<PauseGuard>,
    }
}

impl<Q: Body + 'static> Upload<Q> {
    /// Starts to buffer the request's body, with at most `limit` bytes. A body that is a
    /// [`ReplayBody`] already is returned as it is, unread and whatever its length.
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
    /// Polls for the buffered request; the errors are those of [`Buffering`].
    ///
    /// While the body is `Pending`, the step windows of `run` pause, and the node counts as one
    /// with a request that has reached no upstream. It also counts as such after the body failed.
    ///
    /// # Panics
    ///
    /// The upload panics if it is polled again after it was ready.
    pub(crate) fn poll(
        self: Pin<&mut Self>,
        run: &Run,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Request<ReplayBody>, BoxError>> {
        let this = self.project();
        let Poll::Ready(body) = this.body.poll(cx) else {
            this.pause.get_or_insert_with(|| run.pause());
            run.node().set_refused(true);
            return Poll::Pending;
        };
        *this.pause = None;
        run.node().set_refused(body.is_err());
        let Some(head) = this.head.take() else {
            panic!("a body was read twice");
        };
        Poll::Ready(body.map(|body| {
            CallSlot::fill_body(&head.extensions, &body);
            Request::from_parts(head, body)
        }))
    }
}
