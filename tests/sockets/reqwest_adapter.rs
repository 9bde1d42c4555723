//! `ReqwestService` in front of upstreams that fail.
//!
//! covers: H1

use std::{error::Error, net::SocketAddr};

use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Request, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_agent::{
    BoxError, Run, RunLayer, RunRegistry, TerminalReason, TerminalResponseLayer,
    llm::failure::TransportError,
};
use tower_agent_reqwest::ReqwestService;

use crate::net::{Call, ClosedPort, Play, Upstream, run, within};

const SECRET: &str = "s3cr3t";

fn service() -> ReqwestService {
    ReqwestService::new(reqwest::Client::builder().no_proxy()).unwrap()
}

fn request_to(addr: SocketAddr) -> Request<Full<Bytes>> {
    let uri: Uri = format!("http://{addr}/v1/chat/completions?key={SECRET}")
        .parse()
        .unwrap();
    let request = Request::post(uri).header("x-try", "one");
    request.body(Full::from("{}")).unwrap()
}

/// A call of which only the connection counts.
fn call(connection: usize) -> Call {
    Call::new(connection, Uri::default(), HeaderMap::new(), Bytes::new())
}

/// All that a log could show of an error.
fn text_of(error: &BoxError) -> String {
    let mut text = format!("{error:?}");
    let mut next: Option<&dyn Error> = Some(&**error);
    while let Some(error) = next {
        text += &format!("\n{error}");
        next = error.source();
    }
    text
}

/// covers: T76
#[test]
fn a_redirect_is_an_answer() {
    run(async {
        for status in [301, 302, 303, 307, 308] {
            let target = Upstream::http1(Play::Silent).await;
            let play = Play::keep(format!(
                "HTTP/1.1 {status} Moved\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n",
                target.addr
            ));
            let upstream = Upstream::http1(play).await;
            let answer = within(service().oneshot(request_to(upstream.addr))).await;
            assert_eq!(answer.unwrap().status(), status);
            assert_eq!((upstream.count(), target.count()), (1, 0));
        }
    });
}

/// As the docs warn: nobody can see its policies from here.
/// covers: T77
#[test]
fn a_client_that_was_built_elsewhere_keeps_its_redirects() {
    run(async {
        let target = Upstream::http1(Play::keep("HTTP/1.1 204 No Content\r\n\r\n")).await;
        let play = Play::keep(format!(
            "HTTP/1.1 303 See Other\r\nlocation: http://{}/\r\ncontent-length: 0\r\n\r\n",
            target.addr
        ));
        let upstream = Upstream::http1(play).await;
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let service = ReqwestService::from_client(client);
        let answer = within(service.oneshot(request_to(upstream.addr))).await;
        assert_eq!(answer.unwrap().status(), StatusCode::NO_CONTENT);
        assert_eq!((upstream.count(), target.count()), (1, 1));
    });
}

/// covers: T78
#[test]
fn the_run_of_the_request_is_on_the_answer() {
    run(async {
        let play = Play::keep("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
        let upstream = Upstream::http1(play).await;
        let run = Run::open();
        let mut request = request_to(upstream.addr);
        request.extensions_mut().insert(run.clone());
        let answer = within(service().oneshot(request)).await.unwrap();
        let kept = answer.extensions().get::<Run>().unwrap();
        run.end(TerminalReason::Aborted);
        assert_eq!(kept.terminal_reason(), Some(TerminalReason::Aborted));
    });
}

/// The second request has a URL that the service knows.
#[test]
fn a_request_of_an_http2_caller_reaches_an_http1_upstream() {
    run(async {
        let play = Play::keep("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
        let upstream = Upstream::http1(play).await;
        let service = service();
        for _ in 0..2 {
            let mut request = request_to(upstream.addr);
            *request.version_mut() = Version::HTTP_2;
            let answer = within(service.clone().oneshot(request)).await;
            assert_eq!(answer.unwrap().status(), StatusCode::OK);
        }
    });
}

#[test]
fn the_version_of_the_upstream_is_not_handed_on() {
    run(async {
        for version in ["1.0", "1.1"] {
            let head = format!("HTTP/{version} 200 OK\r\ncontent-length: 0\r\n\r\n");
            let upstream = Upstream::http1(Play::keep(head)).await;
            let answer = within(service().oneshot(request_to(upstream.addr))).await;
            assert_eq!(answer.unwrap().version(), Version::HTTP_11);
        }
    });
}

#[test]
fn a_body_that_is_not_sync_is_sent() {
    run(async {
        let upstream = Upstream::bytes("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
        // As an axum handler gets it.
        let request = request_to(upstream.addr).map(axum::body::Body::new);
        let answer = within(service().oneshot(request)).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let calls = upstream.calls();
        assert_eq!(calls[0].body, "{}");
        assert_eq!(calls[0].headers["content-length"], "2");
    });
}

/// The service keeps the last URL, and each request still goes where and how it says.
#[test]
fn requests_in_turn_reach_their_own_urls() {
    run(async {
        let upstream = Upstream::bytes("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
        let service = service();
        let paths = ["/a?x=1", "/a?x=1", "/b", "/a?x=2", "/B", "/b"];
        for (number, path) in paths.into_iter().enumerate() {
            let request = Request::post(format!("http://{}{path}", upstream.addr))
                .header("x-try", number)
                .body(Full::from(number.to_string()))
                .unwrap();
            let answer = within(service.clone().oneshot(request)).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            within(answer.into_body().collect()).await.unwrap();
        }
        assert!(!format!("{service:?}").contains("/b"), "{service:?}");
        let calls = upstream.calls();
        let sent = calls.iter().map(|call| call.uri.to_string());
        assert_eq!(sent.collect::<Vec<_>>(), paths);
        for (number, call) in calls.iter().enumerate() {
            assert_eq!(call.headers["x-try"], number.to_string());
            assert_eq!(call.body, number.to_string());
        }
    });
}

#[test]
fn a_dropped_future_closes_the_connection() {
    run(async {
        let upstream = Upstream::http1(Play::Silent).await;
        let call = tokio::spawn(service().oneshot(request_to(upstream.addr)));
        upstream.accepted("one").await;
        call.abort();
        upstream.released("one").await;
    });
}

#[test]
fn a_dropped_body_closes_the_connection() {
    run(async {
        let upstream = Upstream::http1(Play::Tokens(1)).await;
        let answer = within(service().oneshot(request_to(upstream.addr))).await;
        drop(answer.unwrap());
        upstream.released("one").await;
    });
}

/// Nothing is sent twice, on a new connection or on one that was kept. When a
/// client has a connection back nobody outside can know, so the second call is
/// mostly on the first one's: it is tried until it was.
#[test]
fn a_connection_that_closes_without_an_answer_is_one_failed_try() {
    run(async {
        for _ in 0..50 {
            if hangs_up_on_the_second().await {
                return;
            }
        }
        panic!("no connection was kept");
    });
}

/// Whether the second call was made on the connection of the first.
async fn hangs_up_on_the_second() -> bool {
    let upstream = Upstream::serve(|stream, connection, upstream| {
        tokio::spawn(answer_the_first(stream, connection, upstream));
    })
    .await;
    let mut service = service();
    let first = within(service.call(request_to(upstream.addr))).await;
    let body = within(first.unwrap().into_body().collect()).await;
    assert_eq!(body.unwrap().to_bytes(), "{}");

    for tries in 2..=4 {
        let error = within(service.call(request_to(upstream.addr)))
            .await
            .unwrap_err();
        assert!(TransportError::is_in(&*error), "{error:?}");
        assert!(!text_of(&error).contains(SECRET), "{error:?}");
        assert_eq!(upstream.count(), tries);
    }
    upstream.calls()[1].connection == 0
}

/// Answers the first request that it gets; for the others it hangs up.
async fn answer_the_first(mut stream: TcpStream, connection: usize, upstream: Upstream) {
    let mut read = Vec::new();
    loop {
        while !read.ends_with(b"{}") {
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return;
            }
        }
        read.clear();
        upstream.accept(call(connection));
        if upstream.count() > 1 {
            return;
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        stream.write_all(answer).await.unwrap();
    }
}

/// What a server refuses so may be repeated, says HTTP/2; but by a layer that
/// counts.
/// covers: T76
#[test]
fn a_refused_http2_stream_is_one_failed_try() {
    run(async {
        let upstream = Upstream::serve(|stream, connection, upstream| {
            tokio::spawn(refuse_streams(stream, connection, upstream));
        })
        .await;
        let builder = reqwest::Client::builder().no_proxy();
        let mut service = ReqwestService::new(builder.http2_prior_knowledge()).unwrap();
        for tries in 1..=3 {
            let error = within(service.call(request_to(upstream.addr)))
                .await
                .unwrap_err();
            assert!(TransportError::is_in(&*error), "{error:?}");
            assert_eq!(upstream.count(), tries);
        }
    });
}

/// An HTTP/2 server that answers each HEADERS with RST_STREAM(REFUSED_STREAM).
async fn refuse_streams(mut stream: TcpStream, connection: usize, upstream: Upstream) {
    const SETTINGS: u8 = 4;
    let mut preface = [0; 24];
    stream.read_exact(&mut preface).await.unwrap();
    stream
        .write_all(&[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).await.is_ok() {
        let [a, b, c, kind, flags, id @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
        match (kind, flags & 1) {
            (SETTINGS, 0) => {
                let acknowledged = [0, 0, 0, SETTINGS, 1, 0, 0, 0, 0];
                stream.write_all(&acknowledged).await.unwrap();
            }
            // HEADERS
            (1, _) => {
                upstream.accept(call(connection));
                let mut reset = vec![0, 0, 4, 3, 0];
                reset.extend(id);
                reset.extend(7_u32.to_be_bytes());
                stream.write_all(&reset).await.unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn a_refused_connection_is_a_transport_error_without_the_url() {
    run(async {
        let port = ClosedPort::new();
        let error = within(service().oneshot(request_to(port.addr)))
            .await
            .unwrap_err();
        assert!(error.is::<TransportError>(), "{error:?}");
        let text = text_of(&error);
        assert!(!text.contains(SECRET), "{text}");
        assert!(!text.contains("/v1/chat"), "{text}");
    });
}

#[test]
fn a_refused_connection_is_answered_502() {
    run(async {
        let registry = RunRegistry::new();
        let stack = ServiceBuilder::new()
            .layer(TerminalResponseLayer::new())
            .layer(RunLayer::new(registry.clone()))
            .service(service());
        let port = ClosedPort::new();
        let Ok(answer) = within(stack.oneshot(request_to(port.addr))).await;
        assert_eq!(answer.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(answer.headers().get("x-terminal-reason"), None);
        assert_eq!(answer.headers().get("x-should-retry"), None);
        assert!(answer.headers().contains_key("x-run-id"));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["error"]["code"], "upstream_failed");
        assert!(!body.to_string().contains(SECRET), "{body}");
        let reason = registry.list()[0].reason.clone().unwrap();
        assert!(matches!(reason, TerminalReason::Failed(_)), "{reason}");
    });
}

#[test]
fn a_body_that_is_cut_is_a_transport_error_without_the_url() {
    run(async {
        let play = Play::close(["HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".into()]);
        let upstream = Upstream::http1(play).await;
        let answer = within(service().oneshot(request_to(upstream.addr))).await;
        let error = within(answer.unwrap().into_body().collect())
            .await
            .unwrap_err();
        assert!(error.is::<TransportError>(), "{error:?}");
        assert!(!text_of(&error).contains(SECRET), "{error:?}");
    });
}

/// The request's own body fails: the call fails with its error in the chain.
#[test]
fn an_error_of_the_requests_body_stays_in_the_chain() {
    run(async {
        let upstream = Upstream::http1(Play::Silent).await;
        let frames = stream::iter([Err(BoxError::from("the body broke"))]);
        let request = request_to(upstream.addr).map(|_| StreamBody::new(frames));
        let error = within(service().oneshot(request)).await.unwrap_err();
        let text = text_of(&error);
        assert!(text.contains("the body broke"), "{text}");
        assert!(!text.contains(SECRET), "{text}");
    });
}

/// A request that reqwest cannot build never reaches the wire.
#[test]
fn a_uri_without_a_host_is_no_transport_error() {
    run(async {
        let request = Request::post("/v1").body(Full::<Bytes>::default()).unwrap();
        let error = within(service().oneshot(request)).await.unwrap_err();
        assert!(!TransportError::is_in(&*error), "{error:?}");
    });
}
