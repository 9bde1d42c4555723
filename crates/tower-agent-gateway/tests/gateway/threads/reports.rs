//! Public reports about servers with threads, and about the protocol of a connection.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::sleep,
};

use super::{request, threads, turn};
use crate::{
    net::{Play, Raw, Upstream, asks, run, within},
    support::Gateway,
};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// An empty SETTINGS frame.
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// wai 989 and bun 40137: a server that looked at the first read alone took a preface that came in
/// parts for HTTP/1.
#[test]
fn a_preface_that_comes_in_parts_is_http_2() {
    run(async {
        let gateway = Gateway::alone("m").await;
        for first in [1, 2, 3, 4, 23] {
            let mut client = within(TcpStream::connect(gateway.addr)).await.unwrap();
            client.set_nodelay(true).unwrap();
            client.write_all(&PREFACE[..first]).await.unwrap();
            sleep(Duration::from_millis(50)).await;
            client.write_all(&PREFACE[first..]).await.unwrap();
            client.write_all(&SETTINGS).await.unwrap();
            let mut frame = [0; 9];
            within(client.read_exact(&mut frame)).await.unwrap();
            assert_eq!(frame[3], SETTINGS[3], "{first}");
        }
    });
}

/// async-http 128: a server that waited for 24 bytes before it chose never answered a shorter request.
#[test]
fn a_request_that_is_shorter_than_the_preface_or_begins_like_it_is_answered() {
    run(async {
        let (_upstream, gateway) = threads(1, "").start_with_model(&["ok"]).await;
        let mut short = Raw::request(gateway.addr, "GET / HTTP/1.0\r\n\r\n").await;
        assert!(short.read_to_end().await.starts_with("HTTP/1.0 200"));

        for first in ["P", "PO"] {
            let post = request("x-run-id: r", &asks("ok", false));
            let mut client = Raw::request(gateway.addr, first).await;
            sleep(Duration::from_millis(50)).await;
            client.send(&post[first.len()..]).await;
            assert_eq!(client.answer().await.status, 200, "{first}");
        }
        let mut client = Raw::request(gateway.addr, "PR").await;
        sleep(Duration::from_millis(50)).await;
        client
            .send("OPFIND /v1/models HTTP/1.1\r\nhost: h\r\n\r\n")
            .await;
        assert_eq!(client.answer().await.status, 405);
    });
}

/// Sends turns one after the other until `over`; the longest of them, and how many there were.
async fn turns_beside(client: &mut Raw, over: &AtomicBool) -> (Duration, usize) {
    let (mut longest, mut count) = (Duration::ZERO, 0);
    while !over.load(Ordering::SeqCst) {
        let began = Instant::now();
        assert_eq!(turn(client, "ok").await.status, 200);
        longest = longest.max(began.elapsed());
        count += 1;
    }
    (longest, count)
}

/// litellm 31497: an oversized prompt held the only event loop, and the requests of others were reset.
#[test]
fn a_prompt_of_30_mb_does_not_hold_up_the_turns_beside_it() {
    run(async {
        let (_upstream, gateway) = threads(1, "").start_with_model(&["ok"]).await;
        let words = "lorem ipsum ".repeat(30 * 1024 * 1024 / 12);
        let says = json!([{"role": "user", "content": words}]);
        let long = request(
            "x-run-id: long",
            &json!({"model": "ok", "messages": says}).to_string(),
        );
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let mut slow = Raw::connect(gateway.addr).await;
        let sent = tokio::spawn(async move {
            let began = Instant::now();
            slow.send(&long).await;
            let status = slow.answer().await.status;
            is_over.store(true, Ordering::SeqCst);
            (status, began.elapsed())
        });
        let mut client = Raw::connect(gateway.addr).await;
        let (longest, count) = turns_beside(&mut client, &over).await;
        let (status, took) = sent.await.unwrap();
        println!("{took:?}, beside {count} turns of at most {longest:?}");
        assert_eq!(status, 200);
        assert!(
            count >= 5 && longest < took * 2 / 5,
            "{count}, {longest:?} of {took:?}"
        );
    });
}

/// litellm 34031: an upstream's error of 114 MB was read whole, masked and logged on the event loop.
#[test]
fn an_error_of_100_mb_does_not_hold_up_the_turns_beside_it() {
    run(async {
        let error = format!(
            r#"{{"error":{{"message":"{}"}}}}"#,
            "x".repeat(100 * 1024 * 1024)
        );
        let length = error.len();
        let head = format!(
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        let broken = Upstream::http1(Play::close([head + &error])).await;
        let model = Upstream::model().await;
        let config = threads(1, "");
        let config = config
            .candidate("broken", broken.addr)
            .candidate("ok", model.addr);
        let gateway = config.start().await;
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let mut slow = Raw::connect(gateway.addr).await;
        let sent = tokio::spawn(async move {
            let began = Instant::now();
            slow.send(&request("x-run-id: long", &asks("broken", false)))
                .await;
            let answer = slow.answer().await;
            is_over.store(true, Ordering::SeqCst);
            (answer.status, began.elapsed())
        });
        let mut client = Raw::connect(gateway.addr).await;
        let (longest, count) = turns_beside(&mut client, &over).await;
        let (status, took) = sent.await.unwrap();
        println!("{took:?}, beside {count} turns of at most {longest:?}");
        assert_eq!(status, 400);
        assert!(longest < Duration::from_secs(1), "{longest:?} of {took:?}");
    });
}

/// envoy 4602, load-test-ng 718 and hitch 142: long-lived connections gathered on a few threads.
#[test]
fn connections_are_spread_over_the_threads_also_after_some_have_left() {
    run(async {
        let (upstream, gateway) = threads(4, "").start_with_model(&["ok"]).await;
        let mut clients = vec![];
        for _ in 0..40 {
            let mut client = Raw::connect(gateway.addr).await;
            assert_eq!(turn(&mut client, "ok").await.status, 200);
            clients.push(client);
        }
        // All of two threads leave.
        let mut at = 0;
        clients.retain(|_| {
            at += 1;
            at % 4 > 1
        });
        assert_eq!(clients.len(), 20);
        sleep(Duration::from_millis(200)).await;
        for _ in 0..20 {
            clients.push(Raw::connect(gateway.addr).await);
        }
        let before = upstream.count();
        for client in &mut clients {
            assert_eq!(turn(client, "ok").await.status, 200);
        }
        let mut of_threads = BTreeMap::new();
        for call in &upstream.calls()[before..] {
            *of_threads.entry(call.connection).or_insert(0) += 1;
        }
        assert_eq!(of_threads.into_values().collect::<Vec<_>>(), [10; 4]);
    });
}

/// auto-agent 611: each worker counted by itself, so that a caller had a budget for each of them.
#[test]
fn a_caller_has_one_budget_at_all_threads() {
    run(async {
        let config = threads(4, "[auth]\nkeys_env = \"TEST_KEYS\"\nturns_per_hour = 5");
        let config = config
            .env("TEST_KEYS", "one:sk-one")
            .env("TEST_TOKEN", "t0ken");
        let (upstream, gateway) = config.start_with_model(&["ok"]).await;
        let turns = (0..12).map(async |_| {
            let mut client = Raw::connect(gateway.addr).await;
            let turn = request("authorization: Bearer sk-one", &asks("ok", false));
            client.send(&turn).await;
            client.answer().await.status.as_u16()
        });
        let mut statuses = join_all(turns).await;
        statuses.sort_unstable();
        assert_eq!(statuses[..5], [200; 5]);
        assert_eq!(statuses[5..], [422; 7]);
        assert_eq!(upstream.count(), 5);
    });
}
