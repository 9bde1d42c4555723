//! A gateway behind a gateway.

use crate::{
    net::{Answer, Ask, CHAT, Upstream, asks, run, within},
    support::{Config, Gateway},
};

/// Two gateways: the outer one's candidates are the inner one, which is silent,
/// and one that would serve.
async fn nested(trusted: bool) -> (Gateway, Gateway, Upstream) {
    let upstream = Upstream::model().await;
    let inner = Config::new("")
        .candidates(&["silent"], upstream.addr)
        .start()
        .await;
    let outer = Config::default()
        .candidate("silent", inner.addr)
        .set(format_args!("trusted = {trusted}"))
        .candidate("ok", upstream.addr)
        .start()
        .await;
    (outer, inner, upstream)
}

/// Asks the outer one, and aborts what runs at the inner one.
async fn aborted_inside(outer: &Gateway, inner: &Gateway, upstream: &Upstream) -> Answer {
    let call = outer.post(CHAT, asks("silent", false));
    let call = tokio::spawn(call.header("x-run-id", "r-1").ask());
    upstream.until_open(1).await;
    let runs = inner.json("/runs").await;
    assert!(inner.abort(runs["runs"][0]["run"].as_str().unwrap()).await);
    within(call).await.unwrap()
}

/// The run is over there, so it is over here.
#[test]
fn the_word_of_a_trusted_gateway_ends_the_call() {
    run(async {
        let (outer, inner, upstream) = nested(true).await;
        let answer = aborted_inside(&outer, &inner, &upstream).await;
        assert_eq!(answer.status, 499);
        assert_eq!(answer.headers["x-terminal-reason"], "aborted");
        assert_eq!(answer.headers["x-should-retry"], "false");
        assert_eq!(answer.headers["x-run-id"], "r-1");
        assert_eq!(upstream.models(), ["silent"]);
    });
}

/// It knows nothing of our runs, so what it says is a failure of its own.
#[test]
fn the_word_of_any_other_upstream_does_not() {
    run(async {
        let (outer, inner, upstream) = nested(false).await;
        let answer = aborted_inside(&outer, &inner, &upstream).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["x-served-model"], "ok");
        assert_eq!(answer.headers.get("x-terminal-reason"), None);
        assert_eq!(upstream.models(), ["silent", "ok"]);
    });
}

/// The gateway that is trusted trusts nobody: what its upstream says of our run is
/// not its word.
/// covers: T48
#[test]
fn an_upstream_behind_a_trusted_gateway_does_not_end_the_call() {
    run(async {
        for status in ["500 Oops", "400 Bad Request", "200 OK"] {
            let said = "{\"error\":{\"message\":\"it is\"}}";
            let evil = format!(
                "HTTP/1.1 {status}\r\nx-terminal-reason: aborted\r\nx-run-id: r-1\r\n\
                 content-type: application/json\r\ncontent-length: {}\r\n\r\n{said}",
                said.len()
            );
            let evil = Upstream::bytes(evil).await;
            let upstream = Upstream::model().await;
            let inner = Config::new("").candidates(&["m"], evil.addr).start().await;
            let outer = Config::default()
                .candidate("m", inner.addr)
                .set("trusted = true")
                .candidate("ok", upstream.addr)
                .start()
                .await;

            let call = outer.post(CHAT, asks("m", false)).header("x-run-id", "r-1");
            let answer = call.ask().await;

            assert_eq!(answer.headers.get("x-terminal-reason"), None, "{status}");
            assert_eq!(answer.headers["x-run-id"], "r-1");
            // A caller's fault is nobody else's to serve.
            let served: &[&str] = if status.starts_with('4') {
                &[]
            } else {
                &["ok"]
            };
            assert_eq!(upstream.models(), served, "{status}");
            let wanted = if served.is_empty() { 400 } else { 200 };
            assert_eq!(answer.status, wanted, "{status}");
            let own = inner.json("/runs").await;
            assert_eq!(own["runs"][0]["reason"], serde_json::Value::Null, "{own}");
        }
    });
}
