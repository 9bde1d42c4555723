//! A session of many streams, each with sockets to its client and to its upstream,
//! that is aborted in one call.

use std::time::Instant;

use tokio::{runtime::Handle, task::JoinSet};
use tower_agent::{Owner, TerminalReason};

use crate::net::{Back, Front, Play, Raw, Setup, TOKEN, Upstream, eventually, run_alone};

/// If the limit of open files lets it: each takes a socket at both ends of two
/// connections.
const STREAMS: usize = 2_000;
const SOCKETS: usize = 4;

/// How many streams fit, with room for whatever else is open.
fn streams() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let soft = files.and_then(|line| line.split_whitespace().nth(3)?.parse().ok());
    // As many as systems commonly allow, where there is no such file.
    let limit: usize = soft.unwrap_or(1024);
    STREAMS.min(limit.saturating_sub(256) / SOCKETS)
}

fn post(n: usize) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nx-try: {n}\r\n\
         x-run-id: r-{n}\r\nx-session-id: s\r\ncontent-length: 2\r\n\r\n{{}}"
    )
}

#[test]
fn every_stream_of_an_aborted_session_is_told_once_and_nothing_is_left() {
    run_alone(async {
        let streams = streams();
        assert!(
            streams >= 100,
            "too few files may be open: {streams} streams"
        );
        let upstream = Upstream::http1(Play::Tokens(1)).await;
        let setup = Setup::new(Front::Axum, Back::Reqwest);
        let gateway = setup.serve(upstream.addr).await;
        let before = Handle::current().metrics().num_alive_tasks();
        let mut clients = Vec::new();
        for n in 0..streams {
            let mut client = Raw::request(gateway.addr, &post(n)).await;
            client.until(|text| text.contains(TOKEN)).await;
            clients.push(client);
        }
        let session = gateway.registry.find_session("s");
        assert_eq!(session.len(), streams);
        assert!(session.iter().all(|run| run.in_flight() > 0));
        let mut waits = JoinSet::new();
        for run in &session {
            waits.spawn(run.ended());
        }
        tokio::task::yield_now().await;

        let began = Instant::now();
        let aborted = gateway.registry.abort_session(Owner::anonymous(), "s");
        let latched = began.elapsed();

        assert_eq!(aborted.len(), streams);
        let woken = waits.join_all().await;
        assert_eq!(woken, vec![TerminalReason::Aborted; streams]);
        let told = began.elapsed();
        // The upstream sees each of its connections closed.
        eventually(async || {
            let calls = upstream.calls();
            calls
                .iter()
                .all(|call| call.released.is_some())
                .then_some(())
        })
        .await;
        let released = began.elapsed();
        println!("{streams} streams: latched {latched:?}, woken {told:?}, released {released:?}");
        assert_eq!(upstream.count(), streams);

        for mut client in clients {
            // The body ends; the connection could serve another request.
            let rest = client.until(|text| text.ends_with("0\r\n\r\n")).await;
            assert_eq!(rest.matches("event: error").count(), 1, "{rest}");
            // In the error and beside it, for either kind of client.
            assert_eq!(rest.matches("\"code\":\"aborted\"").count(), 2, "{rest}");
            drop(client);
        }
        assert!(gateway.registry.find_session("s").is_empty());
        assert!(session.iter().all(|run| run.in_flight() == 0));
        let alive = || Handle::current().metrics().num_alive_tasks();
        eventually(async || (alive() <= before).then_some(())).await;
        let all = gateway.registry.list();
        assert!(all.iter().all(|run| run.reason.is_some()));
    });
}
