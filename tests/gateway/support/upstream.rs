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
use tokio::net::TcpListener;

use super::play::answer;

/// A chat request to which the upstream does what its `user` says.
pub(crate) fn chat(user: &str) -> String {
    json!({"model": "m", "user": user, "messages": []}).to_string()
}

/// An upstream of this process, which counts.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) addr: SocketAddr,
    pub(super) seen: Arc<Mutex<Vec<Seen>>>,
    pub(super) open: Arc<AtomicUsize>,
    pub(super) sent: Arc<AtomicUsize>,
}

/// A request, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An answer that is not whole yet.
pub(super) struct Open(pub(super) Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Upstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self {
            addr: listener.local_addr().unwrap(),
            seen: Arc::default(),
            open: Arc::default(),
            sent: Arc::default(),
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

    /// How many pieces of floods were handed to a connection.
    pub(crate) fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }
}
