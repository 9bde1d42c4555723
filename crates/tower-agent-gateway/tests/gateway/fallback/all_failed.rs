//! Nobody serves: what the caller is told, and how often it was tried.
//!
//! covers: T59

use crate::{
    net::{Ask, CHAT, ClosedPort, DIALECTS, Upstream, asks, refusal, run},
    support::Config,
};

/// The caller's fault goes nowhere else, and comes back as it was.
/// covers: T58
#[test]
fn a_400_is_one_call_and_its_body_byte_for_byte() {
    run(async {
        let (upstream, gateway) = Config::new("[retry]")
            .start_with_model(&["400", "ok"])
            .await;
        for (calls, stream) in [(1, false), (2, true)] {
            let answer = gateway.post(CHAT, asks("400", stream)).ask().await;
            assert_eq!(answer.status, 400);
            assert_eq!(answer.headers["x-request-id"], "req_2");
            assert_eq!(answer.headers.get("x-terminal-reason"), None);
            assert_eq!(answer.text(), refusal(400));
            assert_eq!(upstream.count(), calls);
        }
        assert_eq!(upstream.models(), ["400", "400"]);
    });
}

#[test]
fn the_last_answer_is_handed_on_byte_for_byte() {
    run(async {
        let limits = "[retry]\nbase_delay = \"1ms\"\nmax_delay = \"2ms\"";
        let (upstream, gateway) = Config::new(limits)
            .start_with_model(&["500", "529", "503"])
            .await;
        for stream in [false, true] {
            let before = upstream.count();
            let answer = gateway.post(CHAT, asks("500", stream)).ask().await;
            assert_eq!(answer.status, 503);
            assert_eq!(answer.headers["x-request-id"], "req_2");
            assert_eq!(answer.headers["x-served-model"], "503");
            assert_eq!(answer.headers.get("x-should-retry"), None);
            assert_eq!(answer.headers.get("x-terminal-reason"), None);
            assert_eq!(answer.text(), refusal(503));
            // Who is overloaded is left alone where another can serve.
            let tried = ["500", "500", "529", "503", "503"];
            assert_eq!(upstream.models()[before..], tried);
        }
    });
}

#[test]
fn a_connection_that_fails_last_is_502_in_the_dialects_shape() {
    run(async {
        let upstream = Upstream::model().await;
        let closed = ClosedPort::new();
        let gateway = Config::default()
            .candidate("500", upstream.addr)
            .candidate("gone", closed.addr)
            .start()
            .await;
        for (calls, dialect) in DIALECTS.iter().enumerate() {
            let request = gateway.post(dialect.path, dialect.asks("500", false));
            let answer = request.ask().await;
            assert_eq!(answer.status, 502);
            assert_eq!(answer.headers.get("x-terminal-reason"), None);
            let body = answer.text();
            assert_eq!(dialect.error(body).0, "upstream_failed");
            assert!(!body.contains(&closed.addr.to_string()), "{body}");
            assert_eq!(upstream.count(), calls + 1);
        }
    });
}

/// The last attempt's own deadline is what the caller is told.
#[test]
fn a_silence_that_comes_last_is_504() {
    run(async {
        let limits = "[attempt]\nfirst_token_timeout = \"2s\"";
        let (upstream, gateway) = Config::new(limits)
            .start_with_model(&["500", "silent"])
            .await;
        let answer = gateway.post(CHAT, asks("500", true)).ask().await;
        assert_eq!(answer.status, 504);
        assert_eq!(answer.headers["x-terminal-reason"], "step_timeout");
        assert_eq!(upstream.models(), ["500", "silent"]);
    });
}
