use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Request, Response, Uri};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::body::ReplayBody;

/// A probe that sends `GET` to a URI; 2xx means healthy.
///
/// [`HealthGateLayer::get`](crate::layers::health_gate::HealthGateLayer::get) makes a layer with
/// this probe.
#[derive(Clone, Debug)]
pub struct HttpProbe<C> {
    client: C,
    uri: Uri,
}

impl<C> HttpProbe<C> {
    pub(super) const fn new(client: C, uri: Uri) -> Self {
        Self { client, uri }
    }
}

impl<C, B> Service<()> for HttpProbe<C>
where
    C: Service<Request<ReplayBody>, Response = Response<B>>,
{
    type Response = bool;
    type Error = C::Error;
    type Future = HttpProbeFuture<C::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.client.poll_ready(cx)
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let mut request = Request::new(ReplayBody::default());
        *request.uri_mut() = self.uri.clone();
        HttpProbeFuture {
            answer: self.client.call(request),
        }
    }
}

pin_project! {
    /// The response future of [`HttpProbe`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct HttpProbeFuture<F> {
        #[pin]
        answer: F,
    }
}

impl<F, B, E> Future for HttpProbeFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<bool, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.project().answer.poll(cx));
        Poll::Ready(answer.map(|answer| answer.status().is_success()))
    }
}
