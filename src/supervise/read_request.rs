use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::Request;
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::upload::Upload;
use crate::{body::ReplayBody, error::BoxError, run::Run};

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
