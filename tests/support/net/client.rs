use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
    rt::Executor,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::AbortHandle};

use super::{Answer, within};

/// A client that follows no proxy of the machine's environment.
///
/// To make one takes longer than most requests: a gateway brings its own along.
pub(crate) fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// A chat request with a tag.
pub(crate) fn request_of(tag: &str) -> Request<Full<Bytes>> {
    Request::post("http://gateway/v1/chat/completions")
        .header("x-try", tag)
        .header("x-session-id", tag)
        .body(Full::from("{}"))
        .unwrap()
}

/// The version of HTTP that a client speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

impl Version {
    /// Both, for tests that run over each.
    pub(crate) const BOTH: [Self; 2] = [Self::Http1, Self::Http2];
}

/// hyper's client, on one connection.
pub(crate) struct Client {
    sender: Sender,
    tasks: Tasks,
}

/// An executor that can abort all that it spawned.
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
    /// Connects with one version of HTTP.
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

    /// Sends a request; the answer's body is still to be read.
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

    /// Sends a request and reads the answer to its end, if it has a whole one.
    pub(crate) async fn ask(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Answer> {
        let (head, body) = within(self.send(request)).await?.into_parts();
        Ok(Answer {
            status: head.status,
            version: head.version,
            headers: head.headers,
            body: within(body.collect()).await?.to_bytes(),
        })
    }

    /// Drops the whole connection.
    pub(crate) fn hang_up(self) {
        for task in self.tasks.0.lock().unwrap().drain(..) {
            task.abort();
        }
    }
}
