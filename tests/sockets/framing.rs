//! Where an answer ends: no word of an upstream that has two opinions on it is
//! handed on.
//!
//! covers: T70

use axum::body::Body;
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_agent_reqwest::ReqwestService;

use crate::net::{Back, Front, Play, Raw, Setup, Upstream, boxed, chunk, post, run};

/// What the upstream hides behind the length that it announces.
const SMUGGLED: &str = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{\"evil\"}";

/// How it frames that: each is followed by one chunked body.
const HEADS: [&str; 5] = [
    "content-length: 2\r\ntransfer-encoding: chunked",
    "transfer-encoding: chunked\r\ncontent-length: 2",
    "content-length: 2\r\nContent-Length: 2\r\ntransfer-encoding: chunked",
    "content-length: 0\r\ntransfer-encoding: chunked",
    "content-length: 9999\r\ntransfer-encoding: chunked",
];

fn body() -> String {
    format!("{{}}{SMUGGLED}")
}

fn play(head: &str) -> Play {
    let body = chunk(&body());
    Play::keep(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}0\r\n\r\n"))
}

/// Asks twice on one connection, which ends then: the bodies of both answers.
async fn ask_twice(addr: std::net::SocketAddr) -> [String; 2] {
    let mut client = Raw::request(addr, &post("one")).await;
    let first = client.answer().await;
    let last = post("two").replacen("host:", "connection: close\r\nhost:", 1);
    client.send(&last).await;
    let second = client.answer().await;
    assert_eq!(client.read_to_end().await, "", "a third answer");
    [first, second].map(|answer| {
        assert_eq!(answer.status, 200);
        answer.text().to_owned()
    })
}

/// `ReqwestService` and nothing else, behind hyper's HTTP/1.1 connection.
async fn serve_alone(upstream: std::net::SocketAddr) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let client = ReqwestService::new(reqwest::Client::builder().no_proxy()).unwrap();
    let service = client
        .map_request(move |request: Request<Incoming>| {
            let uri = format!("http://{upstream}{}", request.uri().path());
            let mut sent = Request::post(uri);
            sent.headers_mut()
                .unwrap()
                .extend(request.headers().clone());
            sent.headers_mut().unwrap().remove("host");
            sent.body(reqwest::Body::wrap(request.into_body())).unwrap()
        })
        .map_response(|answer: Response<_>| boxed(answer).map(Body::new));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = TowerToHyperService::new(service.clone());
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new());
            let served = builder.serve_connection(TokioIo::new(stream), service);
            tokio::spawn(async move { drop(served.await) });
        }
    });
    addr
}

#[test]
fn reqwest_alone_hands_on_one_answer_for_two_lengths() {
    run(async {
        for head in HEADS {
            let upstream = Upstream::http1(play(head)).await;
            let addr = serve_alone(upstream.addr).await;
            assert_eq!(ask_twice(addr).await, [body(), body()], "{head:?}");
        }
    });
}

/// The client in these stacks is hyper's own, which says what its upstream says.
#[test]
fn the_layer_that_answers_has_the_last_word_on_the_length() {
    run(async {
        for head in HEADS {
            for front in [Front::Axum, Front::Http1] {
                let upstream = Upstream::http1(play(head)).await;
                let setup = Setup::new(front, Back::Legacy);
                for setup in [setup, setup.without_pump()] {
                    let gateway = setup.serve(upstream.addr).await;
                    let all = ask_twice(gateway.addr).await;
                    assert_eq!(all, [body(), body()], "{head:?}, {front:?}");
                }
            }
        }
    });
}
