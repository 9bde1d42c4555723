use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::{Either, Full};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::stop::Stop;
use crate::{
    BoxError,
    body::{ReplayBody, Upload},
};

pin_project! {
    /// Reads the request, and answers it if that is all there is to do.
    #[derive(Debug)]
    pub struct Asked<S, Q>
    where
        S: Service<Request<ReplayBody>>,
    {
        #[pin]
        stage: Stage<S::Future, Q>,
        service: S,
        stop: Stop,
    }
}

pin_project! {
    #[project = StageProj]
    #[derive(Debug)]
    enum Stage<F, Q> {
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

impl<S, Q> Asked<S, Q>
where
    S: Service<Request<ReplayBody>>,
    Q: Body + 'static,
{
    pub(super) fn new(service: S, stop: Stop, request: Request<Q>, max_body: usize) -> Self {
        let upload = Upload::new(request, max_body);
        Self {
            stage: Stage::Upload { upload },
            service,
            stop,
        }
    }
}

impl<S, Q, B> Future for Asked<S, Q>
where
    S: Service<Request<ReplayBody>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes>,
    Q::Error: Into<BoxError>,
{
    type Output = Result<Response<Either<B, Full<Bytes>>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProj::Upload { upload } => {
                    let request = ready!(upload.poll(this.stop.run(), cx))?;
                    if let Err(ended) = this.stop.run().check() {
                        return Poll::Ready(Err(ended.into()));
                    }
                    if let Some(answer) = this.stop.answer(&request) {
                        return Poll::Ready(Ok(answer.map(Either::Right)));
                    }
                    let future = this.service.call(request);
                    this.stage.set(Stage::Calling { future });
                }
                StageProj::Calling { future } => {
                    let answer = ready!(future.poll(cx)).map_err(Into::into);
                    return Poll::Ready(answer.map(|answer| answer.map(Either::Left)));
                }
            }
        }
    }
}
