use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Uri};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
};

use super::play::answer;

/// A chat request to which the upstream does what its `user` says.
pub(crate) fn chat(user: &str) -> String {
    json!({"model": "m", "user": user, "messages": []}).to_string()
}

/// An upstream of this process, which counts.
#[derive(Clone)]
pub(crate) struct ModelUpstream {
    pub(crate) addr: SocketAddr,
    pub(super) seen: Arc<Mutex<Vec<Seen>>>,
    pub(super) open: Arc<AtomicUsize>,
    pub(super) sent: Arc<AtomicUsize>,
    /// Whether what is held may go on.
    goes_on: Arc<watch::Sender<bool>>,
}

/// A request, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An address where nobody listens, and nobody else can while this lives.
pub(crate) struct ClosedPort {
    pub(crate) addr: SocketAddr,
    _bound: TcpSocket,
}

impl ClosedPort {
    pub(crate) fn new() -> Self {
        let bound = TcpSocket::new_v4().unwrap();
        bound.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let addr = bound.local_addr().unwrap();
        let _bound = bound;
        Self { addr, _bound }
    }
}

/// An answer that is not whole yet.
pub(super) struct Open(pub(super) Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ModelUpstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self {
            addr: listener.local_addr().unwrap(),
            seen: Arc::default(),
            open: Arc::default(),
            sent: Arc::default(),
            goes_on: Arc::default(),
        };
        let app = Router::new().fallback(answer).with_state(upstream.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        upstream
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// How many requests came.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The models that were asked for, in order.
    pub(crate) fn models(&self) -> Vec<String> {
        let model = |seen: &Seen| {
            let body: Value = serde_json::from_slice(&seen.body).unwrap();
            body["model"].as_str().unwrap().to_owned()
        };
        self.seen.lock().unwrap().iter().map(model).collect()
    }

    /// How many answers are under way.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// What was held goes on, and nothing is held any more.
    pub(crate) fn go_on(&self) {
        self.goes_on.send_replace(true);
    }

    pub(super) fn let_go(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut goes_on = self.goes_on.subscribe();
        async move { drop(goes_on.wait_for(|it| *it).await) }
    }

    /// How many pieces of floods were handed to a connection.
    pub(crate) fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }
}
