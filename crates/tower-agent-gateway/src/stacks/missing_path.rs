//! Logs the URLs that upstreams do not have: a base URL is often wrong by a part of its path.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response, StatusCode, Uri};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower::Service;

/// The least time between two lines about one URL.
const EVERY: Duration = Duration::from_secs(60);

/// The most URLs that are remembered: each candidate has a few.
const MOST: usize = 1024;

/// Logs an upstream's 404 or 405, at most once a minute for each URL.
///
/// Without the line nobody learns which URL was asked: the caller gets the upstream's answer, which
/// mostly says nothing.
#[derive(Clone, Debug)]
pub(crate) struct MissingPath<S> {
    inner: S,
    logged: Arc<Mutex<HashMap<Uri, Instant>>>,
}

pin_project! {
    /// The future of [`MissingPath`].
    pub(crate) struct MissingPathFuture<F> {
        #[pin]
        inner: F,
        uri: Uri,
        logged: Arc<Mutex<HashMap<Uri, Instant>>>,
    }
}

impl<S> MissingPath<S> {
    pub(crate) fn new(inner: S) -> Self {
        let logged = Arc::default();
        Self { inner, logged }
    }
}

impl<S, B, A> Service<Request<B>> for MissingPath<S>
where
    S: Service<Request<B>, Response = Response<A>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = MissingPathFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let uri = request.uri().clone();
        MissingPathFuture {
            inner: self.inner.call(request),
            uri,
            logged: Arc::clone(&self.logged),
        }
    }
}

impl<F, A, E> Future for MissingPathFuture<F>
where
    F: Future<Output = Result<Response<A>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let answer = ready!(this.inner.poll(cx));
        let status = answer.as_ref().map(Response::status);
        if let Ok(status @ (StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)) = status {
            log(status, this.uri, this.logged);
        }
        Poll::Ready(answer)
    }
}

fn log(status: StatusCode, uri: &Uri, logged: &Mutex<HashMap<Uri, Instant>>) {
    let Some(url) = without_query(uri) else {
        return;
    };
    let mut logged = logged.lock().unwrap_or_else(PoisonError::into_inner);
    let now = Instant::now();
    logged.retain(|_, at| now.duration_since(*at) < EVERY);
    if logged.len() >= MOST || logged.contains_key(&url) {
        return;
    }
    logged.insert(url.clone(), now);
    tracing::warn!(
        %url,
        status = status.as_u16(),
        "an upstream has no such path or model: does `base_url` end where the API begins, as in \
         https://host/v1, and is `model` right? `--check FILE --probe` asks each candidate"
    );
}

/// The URL without its query, which may hold a caller's secret. A base URL has no credentials.
pub(super) fn without_query(uri: &Uri) -> Option<Uri> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(uri.path().parse().ok()?);
    Uri::from_parts(parts).ok()
}
