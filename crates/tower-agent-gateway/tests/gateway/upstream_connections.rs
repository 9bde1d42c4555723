//! Connections to an upstream that die, are dead, or speak another version.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Uri, Version};
use tokio::{net::TcpStream, sync::Barrier, time::Instant};

use crate::{
    net::{Ask, CHAT, Call, DONE, Play, Raw, SSE_HEAD, TOKEN, Upstream, asks, chunk, run},
    support::{Config, Gateway},
};

/// A connection to an upstream, request by request.
struct Accepted {
    io: Raw,
    connection: usize,
    upstream: Upstream,
}

impl Accepted {
    fn new(stream: TcpStream, connection: usize, upstream: Upstream) -> Self {
        let io = Raw::new(stream);
        Self {
            io,
            connection,
            upstream,
        }
    }

    /// Waits for a request of the gateway, whose body is one JSON object in one line.
    async fn request(&mut self) {
        self.io.until(|text| text.ends_with('}')).await;
        let call = Call::new(
            self.connection,
            Uri::default(),
            HeaderMap::new(),
            Bytes::new(),
        );
        self.upstream.accept(call);
    }

    async fn answer(&mut self) {
        let body = chunk(TOKEN) + &chunk(DONE) + "0\r\n\r\n";
        self.io.send(&format!("{SSE_HEAD}{body}")).await;
    }
}

fn connections(upstream: &Upstream) -> Vec<usize> {
    let calls = upstream.calls();
    calls.iter().map(|call| call.connection).collect()
}

async fn streams(gateway: &Gateway) -> crate::net::Answer {
    gateway.post(CHAT, asks("m", true)).ask().await
}

#[test]
fn an_upstream_of_http_1_0_costs_the_caller_neither_chunks_nor_the_connection() {
    run(async {
        let body = format!("{TOKEN}{DONE}");
        let head = "HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        let upstream = Upstream::http1(Play::close([format!("{head}{body}")])).await;
        let gateway = Config::new("").candidates(&["m"], upstream.addr);
        let gateway = gateway.start().await;
        let request = asks("m", true);
        let length = request.len();
        let request =
            format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n\r\n{request}");
        let mut client = Raw::connect(gateway.addr).await;
        for _ in 0..2 {
            client.send(&request).await;
            let answer = client.answer().await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.version, Version::HTTP_11);
            assert_eq!(answer.header("transfer-encoding"), Some("chunked"));
            assert_eq!(answer.header("connection"), None);
            assert_eq!(answer.text(), body);
        }
    });
}

/// Without `[retry]` each call has one attempt.
#[test]
fn a_connection_that_dies_between_two_calls_costs_no_call_and_no_attempt() {
    run(async {
        // Each thread has connections of its own.
        let one = "[server]\nthreads = 1\n";
        for settings in [
            one,
            &format!("{one}[retry]\nmax_attempts_per_candidate = 2"),
        ] {
            let upstream = Upstream::serve(|stream, connection, upstream| {
                let mut accepted = Accepted::new(stream, connection, upstream);
                tokio::spawn(async move {
                    accepted.request().await;
                    accepted.answer().await;
                    // It has gone when the next request arrives.
                    if accepted.connection % 2 == 0 {
                        accepted.request().await;
                        return;
                    }
                    accepted.request().await;
                    accepted.answer().await;
                });
            })
            .await;
            let config = Config::new(settings).candidates(&["m"], upstream.addr);
            let gateway = config.start().await;
            for _ in 0..2 {
                let answer = streams(&gateway).await;
                assert_eq!(answer.status, 200, "{answer:?}");
                assert!(answer.text().ends_with(DONE), "{answer:?}");
                assert!(matches!(answer.header("x-attempt"), None | Some("1")));
            }
            assert_eq!(connections(&upstream), [0, 0, 1]);
        }
    });
}

#[test]
fn after_three_dead_idle_connections_a_fresh_one_serves_at_the_second_try() {
    run(async {
        let (dead, together) = (Arc::new(AtomicBool::new(false)), Arc::new(Barrier::new(3)));
        let is_dead = Arc::clone(&dead);
        let upstream = Upstream::serve(move |stream, connection, upstream| {
            let mut accepted = Accepted::new(stream, connection, upstream);
            let (dead, together) = (Arc::clone(&is_dead), Arc::clone(&together));
            tokio::spawn(async move {
                let is_mortal = !dead.load(Ordering::SeqCst);
                loop {
                    accepted.request().await;
                    if is_mortal && dead.load(Ordering::SeqCst) {
                        // Its kernel acknowledges, and nothing is processed.
                        std::future::pending::<()>().await;
                    }
                    if is_mortal {
                        together.wait().await;
                    }
                    accepted.answer().await;
                }
            });
        })
        .await;
        let settings = "[attempt]\nstep_timeout = \"1s\"\n\
                        [retry]\nmax_attempts_per_candidate = 2";
        let config = Config::new("[server]\nthreads = 1\n".to_owned() + settings)
            .candidates(&["m"], upstream.addr);
        let gateway = config.start().await;
        let opened = (0..3).map(|_| streams(&gateway));
        for answer in futures_util::future::join_all(opened).await {
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        dead.store(true, Ordering::SeqCst);

        let began = Instant::now();
        let answer = streams(&gateway).await;

        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("x-attempt"), Some("2"));
        assert!(began.elapsed() < Duration::from_secs(3));
        assert_eq!(connections(&upstream)[4..], [3]);
        assert_eq!(streams(&gateway).await.header("x-attempt"), Some("1"));
        assert_eq!(connections(&upstream)[5..], [3]);
    });
}
