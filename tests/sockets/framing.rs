//! Where an answer ends: no word of an upstream that has two opinions on it is
//! handed on.

use axum::body::Body;
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_agent::adapter::reqwest::ReqwestService;

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

/// The whole answers that begin `bytes`; `None` if what is left is not whole yet.
fn answers(bytes: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    let mut left = bytes;
    while !left.is_empty() {
        let (head, mut rest) = left.split_once("\r\n\r\n")?;
        assert!(head.starts_with("HTTP/1.1 200 "), "no answer: {left:?}");
        let head = head.to_lowercase();
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        let framing = ["content-length", "transfer-encoding"];
        let framing: Vec<_> = lines.filter(|(name, _)| framing.contains(name)).collect();
        match framing[..] {
            [("content-length", length)] => {
                let length = length.parse().unwrap();
                all.push(rest.get(..length)?.to_owned());
                left = &rest[length..];
            }
            [("transfer-encoding", "chunked")] => {
                let mut body = String::new();
                loop {
                    let (size, chunk) = rest.split_once("\r\n")?;
                    let size = usize::from_str_radix(size, 16).unwrap();
                    body += chunk.get(..size)?;
                    rest = chunk.get(size..)?.strip_prefix("\r\n")?;
                    if size == 0 {
                        break;
                    }
                }
                all.push(body);
                left = rest;
            }
            _ => panic!("its length is unclear: {head:?}"),
        }
    }
    Some(all)
}

/// Asks twice on one connection: all answers that come back.
async fn ask_twice(addr: std::net::SocketAddr) -> Vec<String> {
    let mut client = Raw::connect(addr).await;
    client.send(&post("one")).await;
    let is_whole = |read: &str| answers(read).is_some_and(|all| !all.is_empty());
    let mut read = client.until(is_whole).await;
    let last = post("two").replacen("host:", "connection: close\r\nhost:", 1);
    client.send(&last).await;
    read += &client.read_to_end().await;
    answers(&read).unwrap_or_else(|| panic!("half an answer: {read:?}"))
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
