//! Readers that do not read, and clients whose leaving nobody can see: only
//! deadlines end their calls.

use std::time::Duration;

use http_body_util::BodyExt;
use tower_agent::{TerminalReason, run::ReasonClass};

use crate::net::{
    Back, Client, Front, Play, Raw, Setup, TOKEN, Upstream, Version, eventually, post, request_of,
    run, within,
};

/// The only limit that may pass in a test: time for a busy machine to begin a call.
const CEILING: Duration = Duration::from_secs(1);
/// More than sockets and windows hold.
const FLOOD: usize = 256 * 1024 * 1024;

const SETUPS: [Setup; 3] = [
    Setup::new(Front::Axum, Back::Reqwest),
    Setup::new(Front::Http1, Back::Legacy),
    Setup::new(Front::Auto, Back::Reqwest),
];

/// How long the upstream was held by the call of this tag.
async fn held(upstream: &Upstream, tag: &str) -> Duration {
    let accepted = upstream.accepted(tag).await;
    upstream.released(tag).await - accepted
}

/// covers: T9
#[test]
fn a_client_that_never_reads_holds_the_upstream_no_longer_than_the_ceiling() {
    run(async {
        for setup in SETUPS {
            let upstream = Upstream::http1(Play::Flood(FLOOD)).await;
            let gateway = setup.ceiling(CEILING).serve(upstream.addr).await;
            let _raw = Raw::request(gateway.addr, &post("one")).await;

            let held = held(&upstream, "one").await;
            println!("{:?}: held for {held:?}", setup.front);
            assert_eq!(gateway.reason("one").await, TerminalReason::HardCeiling);
            let call = &upstream.calls()[0];
            assert!(call.bytes < FLOOD, "the reader holds the upstream back");
        }
    });
}

/// It holds nothing, and when it reads at last it learns why: the terminal
/// event needs no room.
#[test]
fn a_client_that_reads_after_the_ceiling_reads_whole_events_and_then_why() {
    run(async {
        for (front, version) in [
            (Front::Axum, Version::Http1),
            (Front::Axum, Version::Http2),
            (Front::Http1, Version::Http1),
            (Front::Auto, Version::Http2),
        ] {
            let upstream = Upstream::http1(Play::Flood(FLOOD)).await;
            let setup = Setup::new(front, Back::Reqwest).ceiling(CEILING);
            let gateway = setup.serve(upstream.addr).await;
            let mut client = Client::connect(gateway.addr, version).await;
            let answer = within(client.send(request_of("one"))).await.unwrap();

            let held = held(&upstream, "one").await;
            println!("{front:?} {version:?}: held for {held:?}");
            assert_eq!(gateway.reason("one").await, TerminalReason::HardCeiling);

            let body = within(answer.into_body().collect()).await.unwrap();
            let text = String::from_utf8(body.to_bytes().into()).unwrap();
            let (tokens, event) = text.split_once("event: error\n").unwrap();
            assert!(tokens.len() < FLOOD);
            assert_eq!(tokens.replace(TOKEN, ""), "", "whole events only");
            assert!(event.contains("\"code\":\"max_turn_time\""), "{event}");
        }
    });
}

/// The byte hides the close: no deadline but the ceiling ends the call.
/// covers: T3
#[test]
fn a_pipelined_byte_before_a_close_hides_it_until_the_ceiling() {
    run(async {
        for setup in SETUPS {
            for reset in [false, true] {
                let upstream = Upstream::http1(Play::Silent).await;
                let gateway = setup.ceiling(CEILING).serve(upstream.addr).await;
                let raw = Raw::request(gateway.addr, &format!("{}P", post("one"))).await;
                upstream.accepted("one").await;
                match reset {
                    true => raw.reset(),
                    false => drop(raw),
                }

                let held = held(&upstream, "one").await;
                let reason = gateway.reason("one").await;
                println!("{:?}, reset: {reset}: {reason} after {held:?}", setup.front);
                let seen = [
                    TerminalReason::HardCeiling,
                    TerminalReason::ClientDisconnect,
                ];
                assert!(seen.contains(&reason), "{reason}");
            }
        }
    });
}

/// The next token finds out.
#[test]
fn a_pipelined_byte_before_a_close_hides_it_until_a_write_fails() {
    run(async {
        for setup in SETUPS {
            let upstream = Upstream::http1(Play::Flow).await;
            let gateway = setup.serve(upstream.addr).await;
            let mut raw = Raw::request(gateway.addr, &format!("{}P", post("one"))).await;
            raw.until(|text| text.contains("data:")).await;
            drop(raw);

            upstream.released("one").await;
            let reason = gateway.reason("one").await;
            assert_eq!(reason, TerminalReason::ClientDisconnect, "{setup:?}");
        }
    });
}

/// The beginning of a request, and the client is gone: why is the run over?
async fn leave_in_the_request(setup: Setup, framing: &str) -> TerminalReason {
    let upstream = Upstream::http1(Play::Silent).await;
    let gateway = setup.serve(upstream.addr).await;
    let raw = Raw::request(
        gateway.addr,
        &format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\n\
         x-session-id: one\r\n{framing}\r\n\r\n4\r\n{{"
        ),
    )
    .await;
    eventually(async || gateway.registry.list().pop()).await;
    drop(raw);
    let reason = gateway.reason("one").await;
    assert_eq!(upstream.count(), 0, "{setup:?} {framing}");
    reason
}

const FRAMINGS: [&str; 2] = ["content-length: 9", "transfer-encoding: chunked"];

/// A body that is read up front hides nothing.
#[test]
fn a_client_that_leaves_in_the_middle_of_its_request_starts_nothing() {
    run(async {
        for setup in SETUPS {
            for framing in FRAMINGS {
                let reason = leave_in_the_request(setup, framing).await;
                assert_ne!(reason, TerminalReason::Completed);
            }
        }
    });
}

/// It was never called.
/// covers: T4
#[test]
fn a_client_that_leaves_in_the_middle_of_its_request_is_no_failure_of_the_upstream() {
    run(async {
        let mut wrong = Vec::new();
        for setup in SETUPS {
            for framing in FRAMINGS {
                let reason = leave_in_the_request(setup, framing).await;
                if reason.class() != ReasonClass::Cancelled {
                    wrong.push((setup.front, framing, reason));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}
