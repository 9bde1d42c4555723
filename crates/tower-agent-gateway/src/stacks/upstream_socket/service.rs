use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{HeaderName, Method, Request, Response, Uri};
use http_body_util::Either;
use tokio::time::Instant;
use tower::Service;
use tower_agent::{BoxError, Candidate, ReplayBody, Run};
use tower_agent_hyper::{HyperBody, HyperFuture, HyperService};

use super::{
    super::missing_path::without_query,
    body::SocketBody,
    exchange::exchange,
    lane::{LaneLease, UpstreamLane},
    upgrade::UpgradeRefusal,
};
use crate::http::server::thread_number;

/// How long an upstream that refused a WebSocket is asked for none.
const REFUSED_FOR: Duration = Duration::from_secs(10 * 60);

/// The most URLs that are remembered: each candidate has one.
const MOST: usize = 1024;

const X_ATTEMPT: HeaderName = HeaderName::from_static("x-attempt");

/// The body of an answer, by HTTP or over a socket.
pub(crate) type UpstreamBody = Either<HyperBody, SocketBody>;

/// The client of the gateway's upstreams: see the [module](super).
///
/// Clones share their connections. Each of the server's threads has connections of its own, because
/// the task of a connection runs on the thread that made it.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamSockets {
    /// One for each thread by its number.
    clients: Arc<[HyperService]>,
    /// The client that opens sockets; `None` if no candidate asks for one.
    upgrades: Option<HyperService>,
    refusals: Arc<Refusals>,
}

/// The URLs that refused a WebSocket, each with the time.
#[derive(Debug, Default)]
struct Refusals(Mutex<HashMap<Uri, Instant>>);

/// The future of [`UpstreamSockets`].
pub(crate) enum UpstreamFuture {
    Post(HyperFuture),
    // One allocation for a turn that waits for a model, and mostly opens a connection.
    Socket(Pin<Box<dyn Future<Output = Result<Response<UpstreamBody>, BoxError>> + Send>>),
}

impl UpstreamSockets {
    /// `upgrades` is a client of HTTP/1.1 only; without one all requests go over HTTP.
    ///
    /// # Panics
    ///
    /// Panics without a client.
    pub(crate) fn new(clients: Vec<HyperService>, upgrades: Option<HyperService>) -> Self {
        assert!(!clients.is_empty(), "there is a client for each thread");
        Self {
            clients: clients.into(),
            upgrades,
            refusals: Arc::default(),
        }
    }

    /// Sends a request over HTTP.
    pub(super) fn post(&self, request: Request<ReplayBody>) -> UpstreamFuture {
        let client = &self.clients[thread_number() % self.clients.len()];
        UpstreamFuture::Post(client.clone().call(request))
    }

    /// Takes the lane of a request; `None` if the request goes over HTTP.
    fn lease(&self, request: &Request<ReplayBody>) -> Option<LaneLease> {
        let lane = request.extensions().get::<UpstreamLane>()?;
        let is_first = request.headers().get(X_ATTEMPT).is_some_and(|it| it == "1");
        let is_asked_so = is_first
            && request.method() == Method::POST
            && request.uri().path().ends_with("/responses")
            && Candidate::of(request).is_some_and(Candidate::speaks_websocket)
            && !self.refusals.has(request.uri());
        is_asked_so.then(|| lane.lease()).flatten()
    }

    /// Remembers that an upstream speaks no WebSocket, and logs it.
    pub(super) fn refuse(&self, uri: &Uri, refusal: &UpgradeRefusal) {
        if let Some(url) = self.refusals.add(uri) {
            let status = match refusal {
                UpgradeRefusal::Status(status) => Some(status.as_u16()),
                UpgradeRefusal::Silence => None,
            };
            tracing::warn!(
                %url,
                status,
                "an upstream opens no WebSocket, so that its requests go over POST for ten minutes: \
                 is `transport = \"websocket\"` right?"
            );
        }
    }
}

impl Refusals {
    fn has(&self, uri: &Uri) -> bool {
        let known = self.recent();
        !known.is_empty() && without_query(uri).is_some_and(|url| known.contains_key(&url))
    }

    /// Adds a URL; returns it without its query if it was not there.
    fn add(&self, uri: &Uri) -> Option<Uri> {
        let url = without_query(uri)?;
        let mut known = self.recent();
        if known.len() >= MOST || known.contains_key(&url) {
            return None;
        }
        known.insert(url.clone(), Instant::now());
        Some(url)
    }

    fn recent(&self) -> MutexGuard<'_, HashMap<Uri, Instant>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, at| at.elapsed() < REFUSED_FOR);
        known
    }
}

impl Service<Request<ReplayBody>> for UpstreamSockets {
    type Response = Response<UpstreamBody>;
    type Error = BoxError;
    type Future = UpstreamFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReplayBody>) -> UpstreamFuture {
        let upgrades = self.upgrades.clone();
        let Some((upgrades, lease)) = upgrades.zip(self.lease(&request)) else {
            return self.post(request);
        };
        let run = request.extensions().get::<Run>().cloned();
        let answer = exchange(self.clone(), upgrades, request, lease);
        UpstreamFuture::Socket(Box::pin(async move {
            let mut answer = answer.await?;
            // As the HTTP client does it.
            if let Some(run) = run {
                answer.extensions_mut().insert(run);
            }
            Ok(answer)
        }))
    }
}

impl Future for UpstreamFuture {
    type Output = Result<Response<UpstreamBody>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Post(future) => {
                let answer = ready!(Pin::new(future).poll(cx));
                Poll::Ready(answer.map(|answer| answer.map(Either::Left)))
            }
            Self::Socket(future) => future.as_mut().poll(cx),
        }
    }
}
