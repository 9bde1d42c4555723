//! An upstream that sends its caller elsewhere: nobody goes there, with the prompt
//! or with a key.
//!
//! covers: T47

use std::net::SocketAddr;

use crate::{
    net::{Ask, CHAT, DIALECTS, Upstream, asks, run},
    support::Config,
};

const STATUSES: [u16; 7] = [101, 301, 302, 303, 304, 307, 308];

/// An answer with this status that points to `target`.
fn answer(status: u16, target: SocketAddr) -> String {
    let head = format!("HTTP/1.1 {status} Elsewhere\r\nlocation: http://{target}{CHAT}\r\n");
    match status {
        101 => format!("{head}connection: upgrade\r\nupgrade: websocket\r\n\r\n"),
        304 => format!("{head}etag: \"1\"\r\ncontent-length: 2\r\n\r\n"),
        _ => format!("{head}content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"),
    }
}

#[test]
fn alone_it_is_a_502_that_points_nowhere() {
    run(async {
        for status in STATUSES {
            let target = Upstream::model().await;
            let upstream = Upstream::bytes(answer(status, target.addr)).await;
            let gateway = Config::new("")
                .candidates(&["m"], upstream.addr)
                .start()
                .await;
            let mut asked = 0;
            for dialect in &DIALECTS {
                for stream in [false, true] {
                    let call = gateway.post(dialect.path, dialect.asks("m", stream));
                    let call = call.header("x-run-id", format!("r-{asked}"));
                    let answer = call.ask().await;
                    asked += 1;

                    assert_eq!(answer.status, 502, "{status} at {}", dialect.path);
                    for name in [
                        "location",
                        "etag",
                        "upgrade",
                        "x-terminal-reason",
                        "x-should-retry",
                    ] {
                        assert_eq!(answer.headers.get(name), None, "{status}");
                    }
                    let text = answer.text();
                    let (kind, message) = dialect.error(text);
                    assert_eq!(kind, "upstream_failed");
                    assert!(message.contains(&status.to_string()), "{message}");
                    assert!(!text.contains(&target.addr.to_string()), "{text}");
                    // To ask again would be answered the same.
                    assert_eq!(upstream.count(), asked);
                }
            }
            assert_eq!(target.count(), 0, "{status} was followed");
        }
    });
}

#[test]
fn the_next_candidate_serves_and_it_is_left_alone() {
    run(async {
        for status in STATUSES {
            let healthy = Upstream::model().await;
            let target = Upstream::model().await;
            let upstream = Upstream::bytes(answer(status, target.addr)).await;
            let gateway = Config::new("[fallback]\ncooldown = true")
                .candidate("moved", upstream.addr)
                .candidate("ok", healthy.addr)
                .start()
                .await;
            for stream in [false, true, false] {
                let call = gateway.post(CHAT, asks("moved", stream));
                let answer = call.ask().await;

                assert_eq!(answer.status, 200, "{status}");
                assert_eq!(answer.headers["x-served-model"], "ok");
                assert_eq!(answer.headers.get("location"), None);
            }
            assert_eq!((upstream.count(), target.count()), (1, 0), "{status}");
            assert_eq!(healthy.models(), ["ok", "ok", "ok"]);
        }
    });
}
