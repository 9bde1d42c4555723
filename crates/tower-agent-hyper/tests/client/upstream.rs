//! Upstreams in the bytes of their connections.

use std::{
    error::Error,
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tower::ServiceExt;
use tower_agent::{BoxError, ReplayBody};
use tower_agent_hyper::{HyperBody, HyperService, UpstreamProxy};

/// An answer of HTTP/1.1 that keeps its connection.
pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// The longest that a test waits for what must come at once.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    timeout(PATIENCE, future).await.expect("nothing came")
}

/// A server whose connections a function plays.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// What the connections noted, each with its number.
    notes: Arc<Mutex<Vec<(usize, String)>>>,
}

/// One connection of a [`Server`].
pub(crate) struct Peer<S = TcpStream> {
    /// The number of the connection, from 0.
    pub(crate) number: usize,
    pub(crate) io: S,
    notes: Arc<Mutex<Vec<(usize, String)>>>,
}

impl Server {
    pub(crate) async fn start<F, Fut>(play: F) -> Self
    where
        F: Fn(Peer) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let notes = Arc::default();
        let (count, noted) = (Arc::clone(&connections), Arc::clone(&notes));
        tokio::spawn(async move {
            while let Ok((io, _)) = listener.accept().await {
                io.set_nodelay(true).unwrap();
                let number = count.fetch_add(1, Ordering::SeqCst);
                let notes = Arc::clone(&noted);
                tokio::spawn(play(Peer { number, io, notes }));
            }
        });
        Self {
            addr,
            connections,
            notes,
        }
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn notes(&self) -> Vec<(usize, String)> {
        self.notes.lock().unwrap().clone()
    }

    /// A request to this server, with a body that can be sent again.
    pub(crate) fn post(&self, body: &str) -> Request<ReplayBody> {
        let uri = format!("http://{}/v1", self.addr);
        Request::post(uri).body(body.to_owned().into()).unwrap()
    }
}

impl Peer {
    /// The same connection behind TLS; `None` if the client does not finish the handshake.
    pub(crate) async fn behind_tls(
        self,
        acceptor: TlsAcceptor,
    ) -> Option<Peer<TlsStream<TcpStream>>> {
        let Self { number, io, notes } = self;
        let io = acceptor.accept(io).await.ok()?;
        Some(Peer { number, io, notes })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Peer<S> {
    pub(crate) fn note(&self, text: impl Into<String>) {
        self.notes.lock().unwrap().push((self.number, text.into()));
    }

    /// Reads the head of a request of HTTP/1.1; `None` at the end of the connection.
    pub(crate) async fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.io.read_u8().await.ok()?);
        }
        Some(String::from_utf8(head).unwrap())
    }

    /// Reads a request of HTTP/1.1, and notes its body; `None` at the end of the connection.
    pub(crate) async fn request(&mut self) -> Option<String> {
        let head = self.head().await?;
        let length = head.to_ascii_lowercase();
        let length = length.split("content-length: ").nth(1);
        let length = length.map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap());
        let mut body = vec![0; length];
        self.io.read_exact(&mut body).await.ok()?;
        self.note(String::from_utf8(body).unwrap());
        Some(head)
    }

    /// Whether the last note is this one.
    pub(crate) fn is_asked(&self, body: &str) -> bool {
        let notes = self.notes.lock().unwrap();
        notes.last().is_some_and(|(_, note)| note == body)
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        // The client may have gone.
        let _ = self.io.write_all(bytes.as_ref()).await;
    }

    /// Answers each request of HTTP/1.1.
    pub(crate) async fn answer_all(mut self) {
        while self.request().await.is_some() {
            self.send(OK).await;
        }
    }

    /// Keeps the connection open, and reads nothing.
    pub(crate) async fn hang(self) {
        std::future::pending().await
    }
}

pub(crate) fn client() -> HyperService {
    HyperService::new().unwrap()
}

pub(crate) fn client_by(proxy: UpstreamProxy) -> HyperService {
    HyperService::builder().proxy(proxy).build().unwrap()
}

/// Sends a request, and waits for the head of the answer.
pub(crate) async fn send(
    client: &HyperService,
    request: Request<ReplayBody>,
) -> Result<Response<HyperBody>, BoxError> {
    within(client.clone().oneshot(request)).await
}

/// Sends a request, and reads the whole answer.
pub(crate) async fn ask(
    client: &HyperService,
    request: Request<ReplayBody>,
) -> Result<Bytes, BoxError> {
    let answer = send(client, request).await?;
    Ok(within(answer.into_body().collect()).await?.to_bytes())
}

/// An error and its sources, each with `Display` and `Debug`.
pub(crate) fn causes(error: &BoxError) -> Vec<String> {
    let mut causes = Vec::new();
    let mut next: Option<&dyn Error> = Some(&**error);
    while let Some(error) = next {
        causes.push(format!("{error} {error:?}"));
        next = error.source();
    }
    causes
}
