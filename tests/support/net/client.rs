use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
    rt::Executor,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::AbortHandle,
};

use super::within;

/// A chat request with a tag, byte for byte.
pub(crate) fn post(tag: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nx-try: {tag}\r\n\
         x-session-id: {tag}\r\ncontent-length: 2\r\n\r\n{{}}"
    )
}

/// A request without a body, with a tag, byte for byte.
pub(crate) fn get(method: &str, tag: &str) -> String {
    format!(
        "{method} /v1/files/1 HTTP/1.1\r\nhost: gateway\r\nx-try: {tag}\r\nx-session-id: {tag}\r\n\r\n"
    )
}

/// A chat request with a tag.
pub(crate) fn request_of(tag: &str) -> Request<Full<Bytes>> {
    Request::post("http://gateway/v1/chat/completions")
        .header("x-try", tag)
        .header("x-session-id", tag)
        .body(Full::from("{}"))
        .unwrap()
}

/// An HTTP/1.1 client that sees every byte, and can leave at any.
pub(crate) struct Raw {
    stream: TcpStream,
    read: BytesMut,
}

impl Raw {
    pub(crate) async fn connect(addr: SocketAddr) -> Self {
        let stream = within(TcpStream::connect(addr)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self {
            stream,
            read: BytesMut::new(),
        }
    }

    pub(crate) async fn send(&mut self, text: &str) {
        within(self.stream.write_all(text.as_bytes()))
            .await
            .unwrap();
    }

    /// Reads until all that was read satisfies `enough`; answers all of it,
    /// and begins anew.
    pub(crate) async fn until(&mut self, enough: impl Fn(&str) -> bool) -> String {
        within(async {
            loop {
                let text = String::from_utf8_lossy(&self.read);
                if enough(&text) {
                    let text = text.into_owned();
                    self.read.clear();
                    return text;
                }
                let read = self.stream.read_buf(&mut self.read).await.unwrap();
                assert!(read > 0, "the connection ended after {:?}", self.read);
            }
        })
        .await
    }

    /// Reads to the end of the connection.
    pub(crate) async fn read_to_end(&mut self) -> String {
        within(async {
            // A reset ends it too.
            while self.stream.read_buf(&mut self.read).await.unwrap_or(0) > 0 {}
            String::from_utf8_lossy(&self.read).into_owned()
        })
        .await
    }

    /// Sends a FIN, and goes on reading.
    pub(crate) async fn finish_sending(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Leaves with a reset instead of a FIN.
    pub(crate) fn reset(self) {
        self.stream.set_zero_linger().unwrap();
        drop(self.stream);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

impl Version {
    pub(crate) const BOTH: [Self; 2] = [Self::Http1, Self::Http2];
}

/// hyper's client, on one connection.
pub(crate) struct Client {
    sender: Sender,
    tasks: Tasks,
}

/// Spawns, and remembers what it spawned.
#[derive(Clone, Debug, Default)]
struct Tasks(Arc<Mutex<Vec<AbortHandle>>>);

impl<F> Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        let task = tokio::spawn(future);
        self.0.lock().unwrap().push(task.abort_handle());
    }
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub(crate) async fn connect(addr: SocketAddr, version: Version) -> Self {
        let stream = within(TcpStream::connect(addr)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let io = TokioIo::new(stream);
        let tasks = Tasks::default();
        let sender = match version {
            Version::Http1 => {
                let (sender, connection) = http1::handshake(io).await.unwrap();
                tasks.execute(async { drop(connection.await) });
                Sender::Http1(sender)
            }
            Version::Http2 => {
                let (sender, connection) = http2::handshake(tasks.clone(), io).await.unwrap();
                tasks.execute(async { drop(connection.await) });
                Sender::Http2(sender)
            }
        };
        Self { sender, tasks }
    }

    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        match &mut self.sender {
            Sender::Http1(sender) => {
                sender.ready().await?;
                let (mut parts, body) = request.into_parts();
                parts.headers.insert("host", "gateway".parse().unwrap());
                parts.uri = parts.uri.path().parse().unwrap();
                sender.send_request(Request::from_parts(parts, body)).await
            }
            Sender::Http2(sender) => sender.send_request(request).await,
        }
    }

    /// Drops the whole connection.
    pub(crate) fn hang_up(self) {
        for task in self.tasks.0.lock().unwrap().drain(..) {
            task.abort();
        }
    }
}
