//! The threads that serve connections share all but the connections to upstreams.

mod reports;

use std::time::{Duration, Instant};

use serde_json::json;

use crate::{
    net::{Answer, CHAT, Raw, asks, run},
    support::Config,
};

/// Sends a turn of the run "shared" on a connection.
async fn turn(client: &mut Raw, model: &str) -> Answer {
    client
        .send(&request("x-run-id: shared", &asks(model, false)))
        .await;
    client.answer().await
}

fn request(header: &str, body: &str) -> String {
    let length = body.len();
    format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\n{header}\r\ncontent-length: {length}\r\n\r\n{body}")
}

fn threads(threads: u32, more: &str) -> Config {
    Config::new(format_args!("[server]\nthreads = {threads}\n{more}"))
}

#[test]
fn each_thread_has_its_own_connection_to_an_upstream() {
    run(async {
        // With 0 the connections are served by the process's runtime.
        for (count, connections) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
            let (upstream, gateway) = threads(count, "").start_with_model(&["ok"]).await;
            let mut clients = vec![];
            for _ in 0..3 {
                clients.push(Raw::connect(gateway.addr).await);
            }
            for at in 0..9 {
                assert_eq!(turn(&mut clients[at % 3], "ok").await.status, 200);
            }
            let calls = upstream.calls();
            let last = calls.iter().map(|call| call.connection).max();
            assert_eq!(last.map(|last| last + 1), Some(connections), "{count}");
        }
    });
}

#[test]
fn a_cap_counts_the_turns_of_all_threads() {
    run(async {
        let config = threads(3, "[run]\nmax_turns = 4");
        let (upstream, gateway) = config.start_with_model(&["ok"]).await;
        let mut statuses = vec![];
        for _ in 0..6 {
            let mut client = Raw::connect(gateway.addr).await;
            statuses.push(turn(&mut client, "ok").await.status.as_u16());
        }
        assert_eq!(statuses, [200, 200, 200, 200, 422, 422]);
        assert_eq!(upstream.calls().len(), 4);
    });
}

#[test]
fn a_candidate_that_failed_for_one_thread_is_left_alone_by_all() {
    run(async {
        let config = threads(3, "[fallback]\ncooldown = true");
        let (upstream, gateway) = config.start_with_model(&["500", "ok"]).await;
        let mut clients = vec![];
        for _ in 0..3 {
            let mut client = Raw::connect(gateway.addr).await;
            assert_eq!(turn(&mut client, "500").await.status, 200);
            clients.push(client);
        }
        assert_eq!(upstream.models(), ["500", "ok", "ok", "ok"]);
    });
}

/// It runs on another runtime than its connection, and its end is seen there.
#[test]
fn a_caller_that_leaves_a_long_request_releases_the_upstream() {
    run(async {
        for play in ["stall", "silent"] {
            let (upstream, gateway) = threads(2, "").start_with_model(&["ok"]).await;
            let says = json!([{"role": "user", "content": "x".repeat(1024 * 1024)}]);
            let long = json!({"model": "ok", "user": play, "stream": true, "messages": says});
            let client =
                Raw::request(gateway.addr, &request("accept: */*", &long.to_string())).await;
            upstream.until_open(1).await;
            let left = Instant::now();
            match play {
                "stall" => drop(client),
                _ => client.reset(),
            }
            upstream.until_open(0).await;
            let took = left.elapsed();
            assert!(took < Duration::from_secs(1), "{play}: {took:?}");
            assert_eq!(gateway.only_reason().await, "client_disconnect", "{play}");
            assert_eq!(upstream.count(), 1, "{play}: nothing is repeated");
        }
    });
}
