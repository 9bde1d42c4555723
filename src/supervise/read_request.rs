//! Buffers a request body before the inner service is called; clocks pause meanwhile.

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
    run::{PauseGuard, Run},
};

/// What a layer does with a request that it has read whole: `A` is the answer of the
/// inner service.
pub trait RequestReader<A> {
    /// The answer of the layer.
    type Answer;

    /// The node that the request belongs to.
    fn run(&self) -> &Run;

    /// The request is there; an answer if the inner service is not to be asked.
    fn read(&self, request: &Request<ReplayBody>) -> Option<Self::Answer>;

    /// The inner service's answer as the layer's.
    fn pass(answer: A) -> Self::Answer;
}

pin_project! {
    /// Reads a request, and calls the inner service unless the node is over by then or
    /// the layer answers itself.
    #[derive(Debug)]
    pub struct ReadRequest<S, Q, R>
    where
        S: Service<Request<ReplayBody>>,
    {
        #[pin]
        stage: ReadStage<S::Future, Q>,
        service: S,
        reader: R,
    }
}

pin_project! {
    #[project = StageProj]
    #[derive(Debug)]
    enum ReadStage<F, Q> {
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

impl<S, Q, R> ReadRequest<S, Q, R>
where
    S: Service<Request<ReplayBody>>,
    Q: Body + 'static,
{
    /// Holds at most `max_body` bytes of a body that is not kept already.
    pub(crate) fn new(service: S, reader: R, request: Request<Q>, max_body: usize) -> Self {
        let upload = Upload::new(request, max_body);
        Self {
            stage: ReadStage::Upload { upload },
            service,
            reader,
        }
    }
}

impl<S, Q, R> Future for ReadRequest<S, Q, R>
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
                StageProj::Upload { upload } => {
                    let request = ready!(upload.poll(this.reader.run(), cx))?;
                    // A deadline may have come meanwhile, and what is read may end it.
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
                    this.stage.set(ReadStage::Calling { future });
                }
                StageProj::Calling { future } => {
                    let answer = ready!(future.poll(cx)).map_err(Into::into);
                    return Poll::Ready(answer.map(R::pass));
                }
            }
        }
    }
}

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
