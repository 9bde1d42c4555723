//! Answers that nobody reads, and heads that are long, over HTTP/2.

use std::{convert::Infallible, net::SocketAddr};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http2 as server, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tower_agent::ReplayBody;

use crate::{
    http2::http2,
    upstream::{ask, send, within},
};

/// More than a stream's window holds.
const LONG: usize = 8 * 1024 * 1024;

/// A server of HTTP/2 that answers with as many bytes as the path says, behind a header of as many
/// bytes as the query says.
async fn server() -> SocketAddr {
    let long = Bytes::from(vec![b'x'; LONG]);
    let answer = move |request: Request<Incoming>| {
        let number = |text: &str| text.parse::<usize>().unwrap_or(0);
        let body = number(&request.uri().path()[1..]);
        let header = number(request.uri().query().unwrap_or_default());
        let answer = Response::builder().header("x-long", "x".repeat(header));
        let answer = answer.body(Full::new(long.slice(..body))).unwrap();
        async { Ok::<_, Infallible>(answer) }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let connection = server::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(io), service_fn(answer.clone()));
            tokio::spawn(connection);
        }
    });
    addr
}

fn get(addr: SocketAddr, path: &str) -> Request<ReplayBody> {
    let request = Request::get(format!("http://{addr}/{path}"));
    request.body(ReplayBody::from("")).unwrap()
}

/// A proxy's window for a connection was as large as that for one of its streams: a caller that did not
/// read its answer stalled the answers of all others on the connection.
///
/// <https://github.com/linkerd/linkerd2-proxy/pull/400>
#[tokio::test]
async fn answers_that_nobody_reads_hold_up_no_other_answer_of_their_connection() {
    let addr = server().await;
    let client = http2().build().unwrap();
    // All but one of the requests that share a connection.
    let opened = (0..99).map(|_| send(&client, get(addr, &LONG.to_string())));
    let unread = join_all(opened).await;
    assert!(unread.iter().all(Result::is_ok));

    let short = ask(&client, get(addr, "1000")).await.unwrap();
    assert_eq!(short.len(), 1000);
    // One that is read comes whole, too, beyond its own window.
    let long = ask(&client, get(addr, &LONG.to_string())).await.unwrap();
    assert_eq!(long.len(), LONG);
    drop(unread);
}

/// A proxy with hyper's limit of HTTP/2 failed answers with more than 16 KiB of headers, which it took
/// over HTTP/1.1.
///
/// <https://github.com/linkerd/linkerd2/issues/14046>
#[tokio::test]
async fn an_answer_with_48_kib_of_headers_is_read() {
    let addr = server().await;
    let client = http2().build().unwrap();
    for kib in [1, 15, 17, 48] {
        let answer = within(send(&client, get(addr, &format!("1?{}", kib * 1024)))).await;
        let answer = answer.unwrap_or_else(|error| panic!("{kib} KiB: {error}"));
        assert_eq!(answer.headers()["x-long"].len(), kib * 1024);
    }
}
