//! Many long uploads at once: the gateway holds so many bytes of them and no more.
//!
//! covers: T84

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use futures_util::future::{join, join_all};
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Barrier,
};

use crate::{
    net::{Ask, CHAT, Client, Raw, Upstream, Version, asks, eventually, run, run_alone, within},
    support::{Config, Gateway},
};

const MIB: usize = 1024 * 1024;

/// The longest request that the gateway takes.
const LONG: usize = 32 * MIB;

/// What an upload writes at a time.
const PIECE: usize = 256 * 1024;

/// What one caller may have of 256 MiB.
const SHARE: usize = 64;

/// A gateway with two callers, and these keys of `[auth]`.
fn config(settings: &str, caps: &str, upstream: &Upstream) -> Config {
    Config::new(format!("{settings}\n[auth]\nkeys_env = \"KEYS\"\n{caps}"))
        .candidate("ok", upstream.addr)
        .env("KEYS", "one:k-1,two:k-2")
}

/// A request of this length.
fn long(length: usize) -> Bytes {
    let (begin, end) = ("{\"model\":\"ok\",\"messages\":[],\"user\":\"", "\"}");
    let filler = "x".repeat(length - begin.len() - end.len());
    [begin, &filler, end].concat().into()
}

fn head(key: &str, framing: &str) -> String {
    format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {key}\r\n{framing}\r\n\r\n")
}

/// Uploads over HTTP/1 until there is an answer: its status line, and how much was sent. The last piece
/// waits until all uploads that share `others` have come so far, or have their answer.
async fn upload(addr: SocketAddr, body: Bytes, others: &Barrier) -> (String, usize) {
    let stream = TcpStream::connect(addr).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let answered = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&answered);
    let answer = tokio::spawn(async move {
        let mut answer = [0; 4096];
        let read = reader.read(&mut answer).await.unwrap();
        seen.store(true, SeqCst);
        let text = String::from_utf8_lossy(&answer[..read]).into_owned();
        text.lines().next().unwrap_or_default().to_owned()
    });
    let head = head("k-1", &format!("content-length: {}", body.len()));
    writer.write_all(head.as_bytes()).await.unwrap();
    let mut sent = 0;
    let (most, last) = body.split_at(body.len() - PIECE);
    for part in [most, last] {
        for piece in part.chunks(PIECE) {
            if answered.load(SeqCst) || writer.write_all(piece).await.is_err() {
                break;
            }
            sent += piece.len();
        }
        if part.len() > PIECE {
            others.wait().await;
        }
    }
    (within(answer).await.unwrap(), sent)
}

async fn upload_http2(addr: SocketAddr, body: Bytes) -> StatusCode {
    let mut client = Client::connect(addr, Version::Http2).await;
    let request = Request::post(format!("http://gateway{CHAT}"))
        .header("authorization", "Bearer k-1")
        .body(Full::from(body));
    client.ask(request.unwrap()).await.unwrap().status
}

async fn until_held(gateway: &Gateway, bytes: usize) {
    eventually(async || {
        let held = gateway.metric("agent_upload_buffer_bytes").await;
        (held == Some(bytes as f64)).then_some(())
    })
    .await;
}

/// Asks as another caller, again and again, as long as the uploads take.
async fn ask_meanwhile(gateway: &Gateway, done: &AtomicBool) -> usize {
    let mut served = 0;
    while !done.load(SeqCst) {
        let request = gateway.post(CHAT, asks("ok", false));
        let answer = request.bearer_auth("k-2").ask().await;
        assert_eq!(answer.status, 200, "{answer:?}");
        served += 1;
    }
    served
}

#[test]
fn many_uploads_of_one_caller_take_its_share_of_the_memory_and_no_more() {
    run_alone(async {
        let body = long(LONG);
        for version in Version::BOTH {
            let upstream = Upstream::model().await;
            let settings = "[server]\nmax_buffered = \"256 MiB\"";
            let gateway = config(settings, "", &upstream).start().await;
            let before = gateway.process.memory("VmRSS");
            let done = AtomicBool::new(false);
            let together = Barrier::new(64);

            let uploads = async {
                let one = |_| async {
                    match version {
                        Version::Http1 => upload(gateway.addr, body.clone(), &together).await.0,
                        Version::Http2 => {
                            let status = upload_http2(gateway.addr, body.clone()).await;
                            format!("HTTP/2 {status}")
                        }
                    }
                };
                let answers = join_all((0..64).map(one)).await;
                done.store(true, SeqCst);
                answers
            };
            let (answers, others) = join(uploads, ask_meanwhile(&gateway, &done)).await;

            let count = |status| answers.iter().filter(|line| line.contains(status)).count();
            let (served, refused) = (count(" 200 "), count(" 503 "));
            assert_eq!(served + refused, 64, "{answers:?}");
            assert!(served > 0 && refused > 0 && others > 0, "{served} {others}");
            let grown = gateway.process.memory("VmHWM") - before;
            println!("{version:?}: {served} of 64 served, {grown} MiB more");
            assert!(grown <= 256 + 32, "{version:?}: {grown} MiB");
            until_held(&gateway, 0).await;
            let counted = gateway
                .metric("agent_uploads_refused_total{limit=\"owner\"}")
                .await;
            assert_eq!(counted, Some(refused as f64));
        }
    });
}

#[test]
fn what_does_not_fit_is_refused_before_it_is_read() {
    run_alone(async {
        let upstream = Upstream::model().await;
        let settings = "[server]\nmax_buffered = \"256 MiB\"";
        let gateway = config(settings, "", &upstream).start().await;
        let body = String::from_utf8(long(LONG).to_vec()).unwrap();
        let (most, last) = body.split_at(LONG - 1);
        let mut held = Vec::new();
        for _ in 0..SHARE / 32 {
            let head = head("k-1", &format!("content-length: {LONG}"));
            let mut upload = Raw::request(gateway.addr, &head).await;
            upload.send(most).await;
            held.push(upload);
        }
        until_held(&gateway, SHARE * MIB).await;

        let run = "x-run-id: late";
        let chunk = format!("{:x}\r\n{}", 64 * 1024, " ".repeat(64 * 1024));
        for (framing, part) in [
            (format!("{run}\r\ncontent-length: {MIB}"), ""),
            (format!("{run}\r\ntransfer-encoding: chunked"), &*chunk),
        ] {
            let mut refused = Raw::request(gateway.addr, &head("k-1", &framing)).await;
            refused.send(part).await;
            let answer = refused.answer().await;
            assert_eq!(answer.status, 503, "{answer:?}");
            assert_eq!(answer.header("retry-after"), Some("1"));
            assert_eq!(answer.header("x-should-retry"), Some("true"));
            let error = &answer.json()["error"];
            assert_eq!(error["code"], "upload_buffer_full", "{error}");
            let told = error["message"].as_str().unwrap();
            assert!(told.contains("its share, 64 MiB, of the 256 MiB"), "{told}");
            assert!(told.contains("[server] max_buffered"), "{told}");
        }
        let status = upload_http2(gateway.addr, long(MIB)).await;
        assert_eq!(status, 503);
        // The other caller has a share of its own.
        let other = gateway.post(CHAT, long(MIB)).bearer_auth("k-2");
        assert_eq!(other.ask().await.status, 200);
        assert_eq!(upstream.count(), 1, "nobody was asked for the refused");

        for upload in &mut held {
            upload.send(last).await;
            assert_eq!(upload.answer().await.status, 200);
        }
        until_held(&gateway, 0).await;
        assert_eq!(gateway.log().matches("uploads are refused").count(), 1);
        let again = gateway.post(CHAT, long(MIB)).bearer_auth("k-1");
        assert_eq!(again.header("x-run-id", "late").ask().await.status, 200);
    });
}

/// At the limit an allocation fails, and the process would abort.
#[test]
fn a_process_with_little_memory_outlives_many_uploads() {
    run_alone(async {
        let body = long(LONG);
        let upstream = Upstream::model().await;
        let config = config("", "max_open_runs = 1", &upstream);
        let gateway = config.start_within(4 * 1024 * 1024).await;

        let together = Barrier::new(50);
        let upload = |_| upload(gateway.addr, body.clone(), &together);
        let answers = join_all((0..50).map(upload)).await;

        assert!(answers.iter().any(|(line, _)| line.contains(" 503 ")));
        assert!(
            answers
                .iter()
                .all(|(line, _)| line.starts_with("HTTP/1.1 "))
        );
        let answer = gateway.post(CHAT, asks("ok", false)).bearer_auth("k-2");
        assert_eq!(answer.ask().await.status, 200);
        until_held(&gateway, 0).await;
    });
}

#[test]
fn a_buffer_that_the_longest_request_does_not_fit_into_is_refused() {
    run(async {
        let upstream = Upstream::model().await;
        let check = async |line: &str| {
            let settings = format!("[server]\nmax_buffered = {line}");
            let config = Config::new(settings).candidate("ok", upstream.addr);
            let file = config.write();
            Gateway::printed(&["--check", file.path()], &[]).await
        };
        for (line, told) in [
            (
                "\"31 MiB\"",
                "\"31 MiB\" is less than 32 MiB, the longest request",
            ),
            ("\"a lot\"", "\"a lot\" is not a size such as \"256 MiB\""),
        ] {
            let (status, [_, log]) = check(line).await;
            assert_eq!(status, Some(1), "{log}");
            let expected = format!(":2:16: server.max_buffered: {told}");
            assert!(log.contains(&expected), "{log}");
        }
        let (status, [_, log]) = check("\"32 MiB\"").await;
        assert_eq!(status, Some(0), "{log}");
    });
}
