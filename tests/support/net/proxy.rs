use std::{convert::Infallible, net::SocketAddr, time::Duration};

use axum::{Router, body::Body, routing::any_service, serve::ListenerExt};
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    client::legacy,
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};
use tower_agent::{
    BoxError, ClientDisconnectLayer, HardCeilingLayer, PumpLayer, RunLayer, RunRegistry,
    RunSnapshot, StepTimeoutLayer, TerminalReason, TerminalResponseLayer, error::RequestCut,
    llm::failure::TransportError,
};
use tower_agent_reqwest::ReqwestService;

use super::eventually;

type Inner = BoxCloneSyncService<Request<Body>, Response<Boxed>, BoxError>;
type Stack = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;
type Boxed = UnsyncBoxBody<Bytes, BoxError>;

/// The server that accepts the clients.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Front {
    /// `axum::serve`: HTTP/1.1 and HTTP/2.
    Axum,
    /// hyper's HTTP/1.1 connection.
    Http1,
    /// The same, with `half_close(true)`.
    HalfClose,
    /// hyper-util's builder for both versions.
    Auto,
}

/// The client that calls the upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Back {
    /// `ReqwestService` over HTTP/1.1.
    Reqwest,
    /// The same over HTTP/2 with prior knowledge.
    ReqwestHttp2,
    /// hyper-util's legacy client.
    Legacy,
}

/// A stack of layers as a gateway has it, and what stands around it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) front: Front,
    pub(crate) back: Back,
    pub(crate) pump: bool,
    pub(crate) ceiling: Option<Duration>,
    pub(crate) step: Option<Duration>,
}

impl Setup {
    /// With a pump, and with limits that pass in no test.
    pub(crate) const fn new(front: Front, back: Back) -> Self {
        Self {
            front,
            back,
            pump: true,
            // Timed, as in production, but never in the way.
            ceiling: Some(Duration::from_secs(600)),
            step: Some(Duration::from_secs(300)),
        }
    }

    /// Sets the ceiling of a call.
    pub(crate) const fn ceiling(mut self, limit: Duration) -> Self {
        self.ceiling = Some(limit);
        self
    }

    /// Sets the window of silence.
    pub(crate) const fn step(mut self, window: Duration) -> Self {
        self.step = Some(window);
        self
    }

    /// Leaves out the pump.
    pub(crate) const fn without_pump(mut self) -> Self {
        self.pump = false;
        self
    }

    /// Serves the stack in front of `upstream`.
    pub(crate) async fn serve(self, upstream: SocketAddr) -> Proxy {
        self.serve_in_front_of(self.client(upstream)).await
    }

    /// Serves the stack in front of a service in this process.
    pub(crate) async fn serve_in_front_of(self, inner: Inner) -> Proxy {
        let registry = RunRegistry::new();
        let stack = self.stack(inner, registry.clone());
        let addr = match self.front {
            Front::Axum => serve(Router::new().fallback_service(any_service(stack))).await,
            front => {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let addr = listener.local_addr().unwrap();
                tokio::spawn(serve_hyper(front, listener, stack));
                addr
            }
        };
        Proxy { addr, registry }
    }

    fn stack(self, inner: Inner, registry: RunRegistry) -> Stack {
        let outer = ServiceBuilder::new()
            .layer(TerminalResponseLayer::new())
            .layer(RunLayer::new(registry));
        let timed = ServiceBuilder::new()
            .layer(ClientDisconnectLayer::new())
            .layer(HardCeilingLayer::optional(self.ceiling))
            .layer(StepTimeoutLayer::optional(self.step))
            .service(inner);
        if self.pump {
            let stack = outer.layer(PumpLayer::new()).service(timed);
            BoxCloneSyncService::new(stack.map_response(|answer| answer.map(Body::new)))
        } else {
            let stack = outer.service(timed);
            BoxCloneSyncService::new(stack.map_response(|answer| answer.map(Body::new)))
        }
    }

    fn client(self, upstream: SocketAddr) -> Inner {
        let reqwest = |builder: reqwest::ClientBuilder| {
            let builder = builder.tcp_nodelay(true).no_proxy();
            forward(ReqwestService::new(builder).unwrap(), upstream)
        };
        match self.back {
            Back::Reqwest => reqwest(reqwest::Client::builder()),
            Back::ReqwestHttp2 => reqwest(reqwest::Client::builder().http2_prior_knowledge()),
            Back::Legacy => {
                let client = legacy::Client::builder(TokioExecutor::new())
                    .retry_canceled_requests(false)
                    .build_http::<Full<Bytes>>();
                forward(client.map_err(TransportError::new), upstream)
            }
        }
    }
}

/// Serves a router on a loopback port until the runtime ends: where.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    addr
}

/// Any answer as one type.
pub(crate) fn boxed<B>(answer: Response<B>) -> Response<Boxed>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    answer.map(|body| body.map_err(Into::into).boxed_unsync())
}

/// Reads the request up front, and sends it to `upstream` with `client`.
fn forward<C, B>(client: C, upstream: SocketAddr) -> Inner
where
    C: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + Sync + 'static,
    C::Error: Into<BoxError> + Send,
    C::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    BoxCloneSyncService::new(service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let (mut parts, body) = request.into_parts();
            let body = body.collect().await.map_err(RequestCut::new)?.to_bytes();
            parts.uri = Uri::try_from(format!("http://{upstream}{}", parts.uri))
                .or_else(|_| format!("http://{upstream}{}", parts.uri.path()).parse())?;
            parts.version = http::Version::default();
            for name in ["host", "content-length", "connection"] {
                parts.headers.remove(name);
            }
            let request = Request::from_parts(parts, Full::new(body));
            client.oneshot(request).await.map(boxed).map_err(Into::into)
        }
    }))
}

async fn serve_hyper(front: Front, listener: TcpListener, stack: Stack) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let service = stack
            .clone()
            .map_request(|request: Request<Incoming>| request.map(Body::new));
        let service = TowerToHyperService::new(service);
        tokio::spawn(async move {
            let io = TokioIo::new(stream);
            // A client may leave in any way it likes.
            match front {
                Front::Auto => {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    drop(builder.serve_connection(io, service).await);
                }
                _ => {
                    let served = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .half_close(matches!(front, Front::HalfClose))
                        .serve_connection(io, service);
                    drop(served.await);
                }
            }
        });
    }
}

/// A stack of layers on a loopback port, served until the runtime ends.
pub(crate) struct Proxy {
    pub(crate) addr: SocketAddr,
    pub(crate) registry: RunRegistry,
}

impl Proxy {
    /// The run of the request that had this tag, once it is over.
    pub(crate) async fn ended(&self, tag: &str) -> RunSnapshot {
        eventually(async || {
            let runs = self.registry.list();
            runs.into_iter()
                .find(|run| run.session.as_deref() == Some(tag) && run.reason.is_some())
        })
        .await
    }

    /// Why the run of the request that had this tag is over.
    pub(crate) async fn reason(&self, tag: &str) -> TerminalReason {
        self.ended(tag).await.reason.unwrap()
    }

    /// The reasons of all runs, once all are over: there must be `count`.
    pub(crate) async fn reasons(&self, count: usize) -> Vec<TerminalReason> {
        let reasons = eventually(async || {
            let runs = self.registry.list();
            let ended: Vec<_> = runs.iter().filter_map(|run| run.reason.clone()).collect();
            (ended.len() >= count && ended.len() == runs.len()).then_some(ended)
        })
        .await;
        assert_eq!(reasons.len(), count, "one run a request");
        reasons
    }
}
