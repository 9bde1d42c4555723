//! An upstream on a loopback port: one handle that serves plays and records calls.
//!
//! Its HTTP/1.1 is written byte for byte, so that one upstream serves both needs: bytes
//! that no library would send, and a model that does what a request's `user` says. A test
//! that needs a protocol of its own serves the connections itself, and records calls with
//! the same handle.

mod http1;
mod http2;
mod model;
mod play;

pub(crate) use self::{
    model::{STREAM, WHOLE, refusal},
    play::{Play, Step},
};

use std::{net::SocketAddr, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Uri};
use serde_json::Value;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::Instant,
};

use super::within;

/// One request, and how far its answer came.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// The request's `x-try`.
    pub(crate) tag: String,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// The number of the connection that it came on, from zero.
    pub(crate) connection: usize,
    pub(crate) accepted: Instant,
    pub(crate) head_sent: Option<Instant>,
    /// Sent so far; of a stream, after the head.
    pub(crate) bytes: usize,
    /// The answer was sent whole.
    pub(crate) complete: bool,
    /// The connection or stream was seen to be gone.
    pub(crate) released: Option<Instant>,
}

impl Call {
    /// A request that was accepted now.
    pub(crate) fn new(connection: usize, uri: Uri, headers: HeaderMap, body: Bytes) -> Self {
        let tag = headers
            .get("x-try")
            .map_or("", |tag| tag.to_str().unwrap())
            .to_owned();
        Self {
            tag,
            uri,
            headers,
            body,
            connection,
            accepted: Instant::now(),
            head_sent: None,
            bytes: 0,
            complete: false,
            released: None,
        }
    }

    /// The request's body, or `null` if that is no JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    fn is_open(&self) -> bool {
        !self.complete && self.released.is_none()
    }
}

/// An upstream that serves until the runtime ends; clones share the records.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) addr: SocketAddr,
    calls: Arc<watch::Sender<Vec<Call>>>,
    resumed: Arc<watch::Sender<bool>>,
}

impl Upstream {
    /// Answers each HTTP/1.1 request with the same play.
    pub(crate) async fn http1(play: Play) -> Self {
        Self::http1_of(move |_| play.clone()).await
    }

    /// Answers each HTTP/1.1 request with these bytes, on connections that stay open.
    pub(crate) async fn bytes(answer: impl Into<String>) -> Self {
        Self::http1(Play::keep(answer)).await
    }

    /// A model: each request says by its `user`, else by its `model`, how it is answered.
    ///
    /// The words are those of the `model` module: `silent`, `stall`, `held`, `429`, and so on.
    /// Any other word is answered well.
    pub(crate) async fn model() -> Self {
        Self::http1_of(model::play).await
    }

    /// Answers HTTP/2 with prior knowledge. The play must be of tokens, or silent.
    pub(crate) async fn http2(play: Play) -> Self {
        Self::serve(move |stream, connection, upstream| {
            tokio::spawn(http2::serve(stream, connection, play.clone(), upstream));
        })
        .await
    }

    /// Answers each HTTP/1.1 request as `play` says.
    pub(crate) async fn http1_of(
        play: impl Fn(&Call) -> Play + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::serve(move |stream, connection, upstream| {
            tokio::spawn(http1::serve(stream, connection, play.clone(), upstream));
        })
        .await
    }

    /// Hands each connection, its number and this handle to `serve`, which spawns.
    pub(crate) async fn serve(serve: impl Fn(TcpStream, usize, Self) + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = Self {
            addr: listener.local_addr().unwrap(),
            calls: Arc::default(),
            resumed: Arc::default(),
        };
        let accepting = upstream.clone();
        tokio::spawn(async move {
            for connection in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                serve(stream, connection, accepting.clone());
            }
        });
        upstream
    }

    /// The calls so far, in the order in which they were accepted.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.borrow().clone()
    }

    /// How many requests came.
    pub(crate) fn count(&self) -> usize {
        self.calls.borrow().len()
    }

    /// How many answers are under way.
    pub(crate) fn open(&self) -> usize {
        let calls = self.calls.borrow();
        calls.iter().filter(|call| call.is_open()).count()
    }

    /// The `model` of each request, in order.
    pub(crate) fn models(&self) -> Vec<String> {
        let calls = self.calls.borrow();
        let model = |call: &Call| call.json()["model"].as_str().unwrap().to_owned();
        calls.iter().map(model).collect()
    }

    /// Waits until `look` finds something in the calls.
    pub(crate) async fn until<T>(&self, mut look: impl FnMut(&[Call]) -> Option<T>) -> T {
        let mut calls = self.calls.subscribe();
        within(async {
            loop {
                let found = look(&calls.borrow_and_update());
                match found {
                    Some(found) => return found,
                    None => calls.changed().await.unwrap(),
                }
            }
        })
        .await
    }

    /// Waits until a request of this tag was read: when.
    pub(crate) async fn accepted(&self, tag: &str) -> Instant {
        let of = |call: &&Call| call.tag == tag;
        self.until(|calls| calls.iter().rev().find(of).map(|call| call.accepted))
            .await
    }

    /// Waits until the connection or stream of a request of this tag is gone: when.
    pub(crate) async fn released(&self, tag: &str) -> Instant {
        let of = |call: &&Call| call.tag == tag;
        self.until(|calls| calls.iter().rev().find(of)?.released)
            .await
    }

    /// Waits until so many answers are under way.
    pub(crate) async fn until_open(&self, count: usize) {
        self.until(|calls| {
            let open = calls.iter().filter(|call| call.is_open()).count();
            (open == count).then_some(())
        })
        .await;
    }

    /// Waits until so many requests came.
    pub(crate) async fn until_count(&self, count: usize) {
        self.until(|calls| (calls.len() == count).then_some(()))
            .await;
    }

    /// Lets each [`Step::Hold`] go on, and those to come.
    pub(crate) fn resume(&self) {
        self.resumed.send_replace(true);
    }

    async fn resumed(&self) {
        drop(self.resumed.subscribe().wait_for(|resumed| *resumed).await);
    }

    /// Records a call: its number.
    pub(crate) fn accept(&self, call: Call) -> usize {
        let mut index = 0;
        self.calls.send_modify(|calls| {
            index = calls.len();
            calls.push(call);
        });
        index
    }

    fn change(&self, index: usize, change: impl FnOnce(&mut Call)) {
        self.calls.send_modify(|calls| change(&mut calls[index]));
    }
}
