use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::Body,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Request, Uri};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// One delta of a chat stream.
const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"t\"}}]}\n\n";

/// A chat request to which the upstream does what its `user` says.
pub(crate) fn chat(user: &str) -> String {
    json!({"model": "m", "user": user, "messages": []}).to_string()
}

/// An upstream of this process, which counts.
#[derive(Clone)]
pub(crate) struct Upstream {
    pub(crate) addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    open: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
}

/// A request, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// An answer that is not whole yet.
struct Open(Arc<AtomicUsize>);

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

    /// How many answers are under way.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// How many pieces of floods were handed to a connection.
    pub(crate) fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }
}

async fn answer(State(upstream): State<Upstream>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    upstream.open.fetch_add(1, Ordering::SeqCst);
    let open = Open(Arc::clone(&upstream.open));
    upstream.seen.lock().unwrap().push(Seen {
        uri: parts.uri,
        headers: parts.headers,
        body,
    });
    let stream = [("content-type", "text/event-stream")];
    let token = Bytes::from_static(TOKEN.as_bytes());
    match asked["user"].as_str() {
        Some("silent") => std::future::pending().await,
        // One token, then nothing.
        Some("stall") => {
            let rest = stream::pending::<Result<Bytes, std::io::Error>>();
            let tokens = stream::iter([Ok(token)]).chain(rest).map(move |token| {
                let _ = &open;
                token
            });
            (stream, Body::from_stream(tokens)).into_response()
        }
        // Tokens as fast as they go.
        Some("flood") => {
            let many = Bytes::from(TOKEN.repeat(1000));
            let tokens = stream::repeat_with(move || {
                let _ = &open;
                upstream.sent.fetch_add(1, Ordering::SeqCst);
                Ok::<_, std::io::Error>(many.clone())
            });
            (stream, Body::from_stream(tokens.take(4096))).into_response()
        }
        Some("limited") => {
            let headers = [
                ("x-should-retry", "true"),
                ("retry-after", "7"),
                ("retry-after-ms", "6500"),
                ("x-request-id", "req_1"),
                ("keep-alive", "timeout=5"),
            ];
            (
                http::StatusCode::TOO_MANY_REQUESTS,
                headers,
                "{\"slow\": \"down\"}",
            )
                .into_response()
        }
        _ => ([("content-type", "application/json")], "{\"ok\": true}").into_response(),
    }
}
