//! Clients that send a FIN after their request.

use std::time::Duration;

use tower_agent::TerminalReason;

use crate::net::{Back, Front, Play, Raw, Setup, Upstream, post, run};

const JSON: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

/// hyper takes the FIN for the end of the client, and answers nothing.
/// covers: T2
#[test]
fn a_half_closed_client_counts_as_gone_by_hypers_default() {
    run(async {
        for front in [Front::Axum, Front::Http1, Front::Auto] {
            for (play, tokens) in [(Play::Silent, 0), (Play::Tokens(1), 1)] {
                let upstream = Upstream::http1(play).await;
                let gateway = Setup::new(front, Back::Reqwest).serve(upstream.addr).await;
                let mut raw = Raw::request(gateway.addr, &post("one")).await;
                upstream.accepted("one").await;
                if tokens > 0 {
                    raw.until(|text| text.contains("data:")).await;
                }
                raw.finish_sending().await;

                upstream.released("one").await;
                let reason = gateway.reason("one").await;
                assert_eq!(reason, TerminalReason::ClientDisconnect, "{front:?}");
                let rest = raw.read_to_end().await;
                assert!(
                    !rest.contains("HTTP/1.1") && !rest.contains("event:"),
                    "{rest}"
                );
            }
        }
    });
}

#[test]
fn with_half_close_a_half_closed_client_gets_its_answer() {
    run(async {
        let upstream = Upstream::http1(Play::keep(JSON)).await;
        let setup = Setup::new(Front::HalfClose, Back::Reqwest);
        let gateway = setup.serve(upstream.addr).await;
        let mut raw = Raw::request(gateway.addr, &post("one")).await;
        raw.finish_sending().await;

        let answer = raw.read_to_end().await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert_eq!(gateway.reason("one").await, TerminalReason::Completed);
    });
}

/// Nothing is noticed until a write fails, and nothing is written.
#[test]
fn with_half_close_a_client_that_left_is_held_until_the_ceiling() {
    run(async {
        let upstream = Upstream::http1(Play::Silent).await;
        let setup = Setup::new(Front::HalfClose, Back::Reqwest);
        let setup = setup.ceiling(Duration::from_secs(1));
        let gateway = setup.serve(upstream.addr).await;
        let raw = Raw::request(gateway.addr, &post("one")).await;
        upstream.accepted("one").await;
        drop(raw);

        upstream.released("one").await;
        assert_eq!(gateway.reason("one").await, TerminalReason::HardCeiling);
    });
}
