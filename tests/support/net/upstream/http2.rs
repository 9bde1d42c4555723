use std::{convert::Infallible, future::pending, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, time::Instant};

use super::{super::wire::TOKEN, Call, Play, Upstream};

/// Records the release of a stream that was not sent whole.
struct Open {
    upstream: Upstream,
    index: usize,
}

impl Open {
    fn change(&self, change: impl FnOnce(&mut Call)) {
        self.upstream.change(self.index, change);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.change(|call| call.released = Some(Instant::now()));
    }
}

/// Serves a connection until the peer closes it.
pub(super) async fn serve(stream: TcpStream, connection: usize, play: Play, upstream: Upstream) {
    let service =
        service_fn(move |request| answer(request, connection, play.clone(), upstream.clone()));
    let served = http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
    // The peer may go away in any way it likes.
    drop(served);
}

async fn answer(
    request: Request<Incoming>,
    connection: usize,
    play: Play,
    upstream: Upstream,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = body
        .collect()
        .await
        .map_or_else(|_| Bytes::new(), |body| body.to_bytes());
    let open = Open {
        index: upstream.accept(Call::new(connection, parts.uri, parts.headers, body)),
        upstream,
    };
    let (tokens, pause) = match play {
        Play::Silent => pending().await,
        Play::Tokens(count) => (count, Duration::ZERO),
        Play::Flow => (usize::MAX, Duration::from_millis(1)),
        other => panic!("{other:?} is of HTTP/1"),
    };
    open.change(|call| call.head_sent = Some(Instant::now()));
    let frames = stream::unfold((open, tokens), move |(open, left)| async move {
        if left == 0 {
            pending::<()>().await;
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        open.change(|call| call.bytes += TOKEN.len());
        let frame = Ok(Frame::data(Bytes::from_static(TOKEN.as_bytes())));
        Some((frame, (open, left - 1)))
    });
    let answer = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
    Ok(answer.body(StreamBody::new(frames)).unwrap())
}
