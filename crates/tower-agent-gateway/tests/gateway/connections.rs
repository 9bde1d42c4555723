//! Connections of which nothing comes, and too many of them.
//!
//! covers: T97

use std::time::Duration;

use futures_util::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, time::Instant};

use crate::{
    net::{Ask, CHAT, DIALECTS, Raw, Upstream, chat, eventually, run, within},
    support::{Config, Gateway},
};

/// A gateway with these settings of its server.
async fn server(settings: &str) -> (Upstream, Gateway) {
    let config = Config::new(format_args!("[server]\n{settings}"));
    config.start_with_model(&["m"]).await
}

/// What the tests wait for; each thing that is cut is cut after this.
const SHORT: Duration = Duration::from_millis(300);

/// How a connection may begin that never asks for anything whole.
const HALVES: [&str; 5] = [
    "",
    "G",
    "GET /healthz HTTP/1.1\r\nhost: h\r\nx-half: ",
    "PRI * HTTP/2.0\r\n",
    // With settings, so that it is one: and no stream.
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
];

/// Waits until what the gateway cuts is cut three times over: no time that a test takes.
async fn time_passes(gateway: &Gateway) {
    for _ in 0..3 {
        let mut half = Raw::request(gateway.addr, "GET / HTTP/1.1\r\n").await;
        half.read_to_end().await;
    }
}

#[test]
fn a_head_that_does_not_come_is_not_awaited_for_ever() {
    run(async {
        let (_upstream, gateway) = server("head_timeout = \"300ms\"").await;
        for half in HALVES {
            let began = Instant::now();
            let mut connection = Raw::request(gateway.addr, half).await;
            let came = connection.read_to_end().await;
            assert!(!came.starts_with("HTTP/1"), "{half:?}: {came}");
            assert!(began.elapsed() >= SHORT, "{half:?}");
        }
    });
}

#[test]
fn a_head_that_trickles_has_no_more_time() {
    run(async {
        let (_upstream, gateway) = server("head_timeout = \"300ms\"").await;
        // Also the second of a connection that is kept.
        for first in ["", "GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n"] {
            let mut connection = Raw::request(gateway.addr, first).await;
            if !first.is_empty() {
                connection.answer().await;
            }
            connection.send("GET /healthz HTTP/1.1\r\nx: ").await;
            let trickles = async {
                while connection.try_send("x").await.is_ok() {
                    tokio::time::sleep(SHORT / 20).await;
                }
            };
            within(trickles).await;
        }
    });
}

#[test]
fn a_connection_that_is_kept_is_closed_once_it_has_been_idle() {
    run(async {
        let limits = "head_timeout = \"300ms\"\nkeep_alive = \"2s\"";
        let (_upstream, gateway) = server(limits).await;
        let request = "GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n";
        let mut kept = Raw::request(gateway.addr, request).await;
        kept.answer().await;
        // The time for heads begins with their first byte.
        time_passes(&gateway).await;
        let idle = Instant::now();
        kept.send(request).await;
        kept.answer().await;
        assert_eq!(kept.read_to_end().await, "");
        assert!(idle.elapsed() >= Duration::from_secs(2));
    });
}

/// It answers pings, as a client that is well does, and asks for nothing.
#[test]
fn an_idle_connection_of_http_2_is_closed_in_good_order() {
    run(async {
        let (_upstream, gateway) = server("keep_alive = \"300ms\"").await;
        let io = TokioIo::new(TcpStream::connect(gateway.addr).await.unwrap());
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
        let (mut sender, connection) = within(handshake).await.unwrap();
        let connection = tokio::spawn(connection);
        let request = http::Request::get(format!("http://{}/healthz", gateway.addr));
        let request = request.body(String::new()).unwrap();
        let answer = within(sender.send_request(request)).await.unwrap();
        assert_eq!(answer.status(), 200);
        drop(answer);
        let ended = within(connection).await.unwrap();
        assert!(ended.is_ok(), "{ended:?}");
    });
}

/// How an upload of a chat begins: by its length, and in chunks.
const UPLOADS: [(&str, &str); 2] = [
    ("content-length: 1000", "{\"model\""),
    ("transfer-encoding: chunked", "8\r\n{\"model\"\r\n"),
];

#[test]
fn an_upload_that_stalls_is_answered_408_and_its_connection_closed() {
    run(async {
        let (upstream, gateway) = server("upload_idle = \"300ms\"").await;
        for dialect in &DIALECTS {
            for (framing, half) in UPLOADS {
                let path = dialect.path;
                let head = format!("POST {path} HTTP/1.1\r\nhost: h\r\n{framing}\r\n\r\n{half}");
                let began = Instant::now();
                let mut connection = Raw::request(gateway.addr, &head).await;
                let answer = connection.answer().await;
                assert_eq!(connection.read_to_end().await, "");
                assert!(began.elapsed() >= SHORT);
                assert_eq!(answer.status, 408);
                assert_eq!(answer.headers["connection"], "close");
                let (kind, _) = dialect.error(answer.text());
                assert_eq!(kind, "invalid_request_error");
            }
        }
        assert_eq!(upstream.count(), 0);
    });
}

#[test]
fn an_upload_that_stalls_on_http_2_is_answered_408_and_the_others_go_on() {
    run(async {
        let (_upstream, gateway) = server("upload_idle = \"300ms\"").await;
        let io = TokioIo::new(TcpStream::connect(gateway.addr).await.unwrap());
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
        let (sender, connection) = within(handshake).await.unwrap();
        tokio::spawn(connection);
        let ask = |pieces: Vec<&'static str>, ends: bool| {
            let pieces = futures_util::stream::iter(pieces).map(|piece| {
                Ok::<_, std::io::Error>(http_body::Frame::data(bytes::Bytes::from(piece)))
            });
            let rest = match ends {
                true => futures_util::stream::empty().left_stream(),
                false => futures_util::stream::pending().right_stream(),
            };
            let body = StreamBody::new(pieces.chain(rest)).boxed_unsync();
            let request = http::Request::post(format!("http://{}{CHAT}", gateway.addr));
            let mut sender = sender.clone();
            async move {
                sender
                    .send_request(request.body(body).unwrap())
                    .await
                    .unwrap()
            }
        };
        let stalled = within(ask(vec!["{\"model\""], false)).await;
        assert_eq!(stalled.status(), 408);
        let whole = within(ask(vec!["{\"model\"", ":\"m\",\"messages\":[]}"], true)).await;
        assert_eq!(whole.status(), 200);
    });
}

#[test]
fn an_upload_that_is_slow_but_moves_is_served() {
    run(async {
        let limits = "head_timeout = \"300ms\"\nupload_idle = \"2s\"\nkeep_alive = \"300ms\"";
        let (_upstream, gateway) = server(limits).await;
        let body = chat("ok");
        for chunked in [false, true] {
            let framing = match chunked {
                true => "transfer-encoding: chunked".to_owned(),
                false => format!("content-length: {}", body.len()),
            };
            let head = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\n{framing}\r\n\r\n");
            let mut connection = Raw::request(gateway.addr, &head).await;
            let began = Instant::now();
            for byte in body.chars() {
                let piece = match chunked {
                    true => format!("1\r\n{byte}\r\n"),
                    false => byte.to_string(),
                };
                connection.send(&piece).await;
                tokio::time::sleep(SHORT / 4).await;
            }
            if chunked {
                connection.send("0\r\n\r\n").await;
            }
            assert!(began.elapsed() > Duration::from_secs(2), "it is not slow");
            let came = connection.answer().await;
            assert_eq!(came.status, 200, "{came:?}");
        }
    });
}

#[test]
fn an_answer_that_is_silent_for_longer_than_a_head_may_take_is_not_cut() {
    run(async {
        let limits = "head_timeout = \"200ms\"\nupload_idle = \"200ms\"\nkeep_alive = \"200ms\"";
        let (upstream, gateway) = server(limits).await;
        let mut streams = Vec::new();
        for is_http_2 in [false, true] {
            let client = reqwest::Client::builder().no_proxy();
            let client = match is_http_2 {
                true => client.http2_prior_knowledge(),
                false => client,
            };
            let request = client.build().unwrap();
            let request = request.post(format!("http://{}{CHAT}", gateway.addr));
            let streamed = chat("held").replace('}', ",\"stream\":true}");
            let mut answer = request.body(streamed).open().await;
            assert_eq!(answer.status, 200);
            streams.push(tokio::spawn(async move { answer.rest().await }));
        }
        // For longer than a connection may take that is being closed, too.
        for _ in 0..3 {
            time_passes(&gateway).await;
        }
        upstream.resume();
        for stream in streams {
            let text = within(stream).await.unwrap();
            assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
        }
    });
}

/// covers: T98
#[test]
fn beyond_the_cap_connections_wait_and_none_is_refused() {
    run(async {
        let limits = "max_connections = 3\nhead_timeout = \"20s\"\nkeep_alive = \"20s\"";
        let (_upstream, gateway) = server(limits).await;
        let request = "GET /healthz HTTP/1.1\r\nhost: h\r\n\r\n";
        let mut served = Vec::new();
        for _ in 0..3 {
            let mut connection = Raw::request(gateway.addr, request).await;
            connection.answer().await;
            served.push(connection);
        }
        let mut waits = Raw::request(gateway.addr, request).await;
        // It says so once it has seen that there are too many.
        eventually(async || gateway.log().contains("connections wait").then_some(())).await;
        let none = tokio::time::timeout(SHORT, waits.answer()).await;
        assert!(none.is_err(), "{none:?}");
        #[cfg(target_os = "linux")]
        {
            let before = gateway.process.processor_time();
            tokio::time::sleep(2 * SHORT).await;
            let spent = gateway.process.processor_time() - before;
            assert!(spent < SHORT / 5, "it waits with {spent:?} of a processor");
        }

        drop(served.pop());
        let came = waits.answer().await;
        assert_eq!(came.status, 200, "{came:?}");
        for connection in &mut served {
            connection.send(request).await;
            connection.answer().await;
        }
    });
}

/// As a file for a program that closes them itself may want it.
#[test]
fn what_is_off_does_not_cut() {
    run(async {
        let off =
            "head_timeout = \"0s\"\nupload_idle = \"0s\"\nmax_connections = 0\nkeep_alive = \"0s\"";
        let (_upstream, without) = server(off).await;
        let (_upstream, clock) = server("head_timeout = \"300ms\"").await;
        let mut head = Raw::request(without.addr, "GET /healthz HTTP/1.1\r\nhost: h").await;
        let (framing, half) = UPLOADS[1];
        let upload = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\n{framing}\r\n\r\n{half}");
        let mut upload = Raw::request(without.addr, &upload).await;
        time_passes(&clock).await;
        head.send("\r\n\r\n").await;
        assert_eq!(head.answer().await.status, 200);
        let rest = "17\r\n:\"m\",\"messages\": [   ]}\r\n0\r\n\r\n";
        upload.send(rest).await;
        let came = upload.answer().await;
        assert_eq!(came.status, 200, "{came:?}");
    });
}
