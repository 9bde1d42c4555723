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

use crate::{
    BoxError,
    body::{ReplayBody, Upload},
    conversation::History,
    run::Run,
};

pin_project! {
    /// Reads the request, and calls the inner service unless the run ended for it.
    #[derive(Debug)]
    pub struct Reading<S, Q>
    where
        S: Service<Request<ReplayBody>>,
    {
        #[pin]
        stage: Stage<S::Future, Q>,
        service: S,
        run: Run,
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

impl<S, Q> Reading<S, Q>
where
    S: Service<Request<ReplayBody>>,
    Q: Body + 'static,
{
    pub(super) fn new(service: S, run: Run, request: Request<Q>, max_body: usize) -> Self {
        let upload = Upload::new(request, max_body);
        Self {
            stage: Stage::Upload { upload },
            service,
            run,
        }
    }
}

impl<S, Q> Future for Reading<S, Q>
where
    S: Service<Request<ReplayBody>>,
    S::Error: Into<BoxError>,
    Q: Body<Data = Bytes>,
    Q::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProj::Upload { upload } => {
                    let request = ready!(upload.poll(this.run, cx))?;
                    read(this.run, request.body());
                    if let Err(ended) = this.run.check() {
                        return Poll::Ready(Err(ended.into()));
                    }
                    let future = this.service.call(request);
                    this.stage.set(Stage::Calling { future });
                }
                StageProj::Calling { future } => {
                    return Poll::Ready(ready!(future.poll(cx)).map_err(Into::into));
                }
            }
        }
    }
}

/// What the request says of the run goes to the run.
fn read(run: &Run, body: &ReplayBody) {
    let body = body.gathered();
    if let Some(history) = History::read(&body, &run.places()) {
        run.follow(&history);
    }
}
