//! A reqwest client as a Tower service.
//!
//! reqwest retries on its own under some protocols, follows redirects with the request's
//! body, and drops a request's extensions. Under layers that count attempts all three are
//! wrong: the first makes attempts that no layer counts, the second sends a prompt to a host
//! that the program did not choose, the third loses the run. [`ReqwestService::new`]
//! switches the first two off. The service puts the run into the answer's extensions.
//!
//! The version of a request, other than HTTP/3, is that of the caller's connection: the service
//! drops it, because the client refuses to send a request with HTTP/2 over HTTP/1.
//!
//! The version of an answer and the framing of an HTTP/1.1 answer belong to the upstream's
//! connection: the answer has HTTP/1.1, and the service removes a `transfer-encoding`, together
//! with a `content-length` beside it, which the `transfer-encoding` overrides. A server that handed
//! on HTTP/1.0 would send no chunks, and close the caller's connection. The extensions that the
//! client left on the answer are removed too: some hold the URL.
//!
//! One retry of the client stays: if a reused connection turns out to be closed before a
//! byte was written, the connection pool sends the request again. The upstream has not
//! seen the request then.
//!
//! The service sets no timeout, because a timeout of the client would count as a failure of the
//! provider. A timeout that the program set on the client's builder stays; a timeout of a single
//! request, made by reqwest's `RequestBuilder`, is dropped.
//!
//! # Cancel safety
//!
//! Once the request is sent, dropping the future, or the body before its end, drops the
//! connection (HTTP/1) or resets the stream (HTTP/2).
//!
//! # Errors
//!
//! An error of the client is a [`TransportError`], without the URL, which may hold a
//! secret. The error of a request that could not be built is reqwest's own.
//!
//! # Examples
//!
//! ```
//! use std::time::Duration;
//! use bytes::Bytes;
//! use http_body_util::Full;
//! use tower::ServiceBuilder;
//! use tower_agent::StepTimeoutLayer;
//! use tower_agent_reqwest::ReqwestService;
//!
//! # fn main() -> Result<(), reqwest::Error> {
//! # let _ = rustls::crypto::ring::default_provider().install_default();
//! let client = ServiceBuilder::new()
//!     .layer(StepTimeoutLayer::new(Duration::from_secs(120)))
//!     .service(ReqwestService::new(reqwest::Client::builder())?);
//! # let _ = tower::Service::<http::Request<Full<Bytes>>>::call(&mut client.clone(), http::Request::default());
//! # Ok(())
//! # }
//! ```

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, Uri, Version};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use reqwest::{Client, ClientBuilder, Url};
use tower_agent::{BoxError, ReplayBody, Run, body::detach, llm::failure::TransportError};
use tower_service::Service;

/// Compiles the example of the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct ReqwestReadme;

/// A reqwest client as a service of `http` requests: see the [crate](self).
#[derive(Clone)]
pub struct ReqwestService {
    client: Client,
    // The last URI and the URL made of it. Most requests have the URI of the request before,
    // and to parse a URL costs more than the rest of this service. A request parses its URL
    // rather than wait for the lock.
    last: Arc<Mutex<Option<(Uri, Url)>>>,
}

impl ReqwestService {
    /// Creates the service with a client from `builder`, with its retries and redirects
    /// switched off.
    ///
    /// One retry stays: the client repeats a request that no upstream has seen, see the
    /// [crate](self).
    ///
    /// # Errors
    ///
    /// The constructor returns the errors of [`ClientBuilder::build`].
    pub fn new(builder: ClientBuilder) -> Result<Self, reqwest::Error> {
        let client = builder
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self::from_client(client))
    }

    /// Creates the service with a built client, which keeps its retries, redirects and timeouts.
    ///
    /// The service cannot see the client's settings. The client may repeat upstream calls
    /// that no layer counts, and its own timeout counts as a failure of the upstream.
    #[must_use]
    pub fn from_client(client: Client) -> Self {
        let last = Arc::default();
        Self { client, last }
    }

    fn known(&self, uri: &Uri) -> Option<Url> {
        let last = self.last.try_lock().ok()?;
        let (known, url) = last.as_ref()?;
        (known == uri).then(|| url.clone())
    }

    fn build<B>(&self, mut request: Request<B>) -> Result<reqwest::Request, reqwest::Error>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        // The client chooses HTTP/1 or HTTP/2; HTTP/3 only if the request has that version.
        if request.version() < Version::HTTP_3 {
            *request.version_mut() = Version::default();
        }
        let Some(url) = self.known(request.uri()) else {
            let uri = request.uri().clone();
            let mut request = request.map(wrap);
            // Without its extensions the request also loses a timeout that reqwest's
            // `RequestBuilder` set.
            request.extensions_mut().clear();
            let request = reqwest::Request::try_from(request)?;
            if let Ok(mut last) = self.last.try_lock() {
                *last = Some((uri, request.url().clone()));
            }
            return Ok(request);
        };
        let (parts, body) = request.into_parts();
        let mut request = reqwest::Request::new(parts.method, url);
        *request.headers_mut() = parts.headers;
        *request.version_mut() = parts.version;
        *request.body_mut() = Some(wrap(body));
        Ok(request)
    }
}

impl fmt::Debug for ReqwestService {
    // The output leaves out the last URL, which may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut service = f.debug_struct("ReqwestService");
        service
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

type Execute = <Client as Service<reqwest::Request>>::Future;

pin_project! {
    /// The response future of [`ReqwestService`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ReqwestFuture {
        #[pin]
        state: ReqwestState,
        run: Option<Run>,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum ReqwestState {
        Executing { #[pin] execute: Execute },
        Unbuilt { error: Option<reqwest::Error> },
    }
}

pin_project! {
    /// The response body of [`ReqwestService`].
    #[derive(Debug)]
    pub struct ReqwestBody {
        #[pin]
        inner: reqwest::Body,
    }
}

impl<B> Service<Request<B>> for ReqwestService
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<ReqwestBody>;
    type Error = BoxError;
    type Future = ReqwestFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Service::<reqwest::Request>::poll_ready(&mut self.client, cx).map_err(broken)
    }

    fn call(&mut self, request: Request<B>) -> ReqwestFuture {
        // reqwest drops the request's extensions, and the run in them.
        let run = request.extensions().get::<Run>().cloned();
        let state = match self.build(request) {
            Ok(request) => ReqwestState::Executing {
                execute: self.client.call(request),
            },
            Err(error) => ReqwestState::Unbuilt { error: Some(error) },
        };
        ReqwestFuture { state, run }
    }
}

impl Future for ReqwestFuture {
    type Output = Result<Response<ReqwestBody>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = match this.state.project() {
            StateProj::Executing { execute } => ready!(execute.poll(cx)),
            StateProj::Unbuilt { error } => match error.take() {
                Some(error) => Err(error),
                None => panic!("polled after completion"),
            },
        };
        let answer = answer.map_err(broken);
        Poll::Ready(answer.map(|answer| handed_on(answer, this.run.take())))
    }
}

/// The answer for the caller, with nothing in it of the upstream's connection.
fn handed_on(answer: reqwest::Response, run: Option<Run>) -> Response<ReqwestBody> {
    let answer = Response::<reqwest::Body>::from(answer);
    let mut answer = answer.map(|inner| ReqwestBody { inner });
    detach(&mut answer);
    if let Some(run) = run {
        answer.extensions_mut().insert(run);
    }
    answer
}

impl Body for ReqwestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.project().inner.poll_frame(cx).map_err(broken)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Converts a body for reqwest, which requires a `Sync` body; a [`ReplayBody`] is one already.
fn wrap<B>(body: B) -> reqwest::Body
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    match ReplayBody::try_from_body(body) {
        Ok(body) => reqwest::Body::wrap(body),
        Err(body) => reqwest::Body::wrap(SyncBody(Mutex::new(Box::pin(body)))),
    }
}

/// A wrapper that makes a body `Sync` by a lock, as reqwest requires.
///
/// The frames are read through exclusive access, by one thread at a time, without the lock.
struct SyncBody<B>(Mutex<Pin<Box<B>>>);

impl<B> SyncBody<B> {
    /// The body; no lock is ever held while it is polled, so a panic leaves it as it was.
    fn locked(&self) -> MutexGuard<'_, Pin<Box<B>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Body> Body for SyncBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let body = self.get_mut().0.get_mut();
        let body = body.unwrap_or_else(PoisonError::into_inner);
        body.as_mut().poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.locked().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.locked().size_hint()
    }
}

fn broken(error: reqwest::Error) -> BoxError {
    let error = error.without_url();
    if error.is_builder() {
        return error.into();
    }
    TransportError::new(error).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::Full;

    use super::*;

    #[test]
    fn the_clients_extensions_are_not_handed_on() {
        let mut answer = Response::new("");
        answer.extensions_mut().insert("of the connection");
        let run = Run::open();

        let mut answer = handed_on(answer.into(), Some(run.clone()));

        let found = answer.extensions_mut().remove::<Run>();
        assert_eq!(found.map(|run| run.id().clone()), Some(run.id().clone()));
        assert!(answer.extensions().is_empty(), "{:?}", answer.extensions());
    }

    #[test]
    #[allow(clippy::unwrap_used, reason = "a test")]
    fn a_timeout_of_reqwests_builder_is_dropped_from_each_request() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let service = ReqwestService::new(Client::builder()).unwrap();
        for _ in 0..2 {
            let asked = Client::new().post("http://h/v1").timeout(Duration::ZERO);
            let asked = Request::<reqwest::Body>::try_from(asked.build().unwrap()).unwrap();

            let sent = service.build(asked.map(|_| Full::<Bytes>::default()));

            assert_eq!(sent.unwrap().timeout(), None);
        }
    }
}
