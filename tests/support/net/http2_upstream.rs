use std::{convert::Infallible, future::pending, time::Duration};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, time::Instant};

use super::{Calls, Play, TOKEN};

/// Notes the release of a stream that was not sent whole.
struct Open {
    calls: Calls,
    index: usize,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.calls
            .change(self.index, |call| call.released = Some(Instant::now()));
    }
}

pub(super) async fn serve(stream: TcpStream, connection: usize, play: Play, calls: Calls) {
    let service =
        service_fn(move |request| answer(request, connection, play.clone(), calls.clone()));
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
    calls: Calls,
) -> Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let (parts, body) = request.into_parts();
    drop(body.collect().await);
    let tag = parts.headers.get("x-try");
    let tag = tag.map_or("", |tag| tag.to_str().unwrap()).to_owned();
    let open = Open {
        index: calls.accept(tag, connection),
        calls,
    };
    let tokens = match play {
        Play::Silent => pending().await,
        Play::Tokens(count) => count,
        Play::Flow => usize::MAX,
        other => panic!("{other:?} is of HTTP/1"),
    };
    let every = match tokens {
        usize::MAX => Duration::from_millis(1),
        _ => Duration::ZERO,
    };
    open.calls
        .change(open.index, |call| call.head_sent = Some(Instant::now()));
    let frames = stream::unfold((open, tokens), move |(open, left)| async move {
        if left == 0 {
            pending::<()>().await;
        }
        if !every.is_zero() {
            tokio::time::sleep(every).await;
        }
        open.calls
            .change(open.index, |call| call.bytes += TOKEN.len());
        let frame = Ok(Frame::data(Bytes::from_static(TOKEN.as_bytes())));
        Some((frame, (open, left - 1)))
    });
    let answer = Response::builder().header(header::CONTENT_TYPE, "text/event-stream");
    Ok(answer.body(StreamBody::new(frames)).unwrap())
}
