//! A gateway behind a gateway.

use reqwest::Response;

use super::{
    super::support::{Config, Gateway, Upstream, candidate, eventually, run, within},
    CHAT, asks,
};

/// Two gateways: the outer one's candidates are the inner one, which is silent,
/// and one that would serve.
async fn nested(trusted: bool) -> (Gateway, Gateway, Upstream) {
    let upstream = Upstream::start().await;
    let inner = Config::candidates(upstream.addr, "", &["silent"]);
    let inner = Gateway::with(&inner, &[]).await;
    let text = [
        candidate("silent", &format!("http://{}", inner.addr)),
        format!("trusted = {trusted}\n"),
        candidate("ok", &format!("http://{}", upstream.addr)),
    ];
    let outer = Gateway::with(&Config::new(&text.concat()), &[]).await;
    (outer, inner, upstream)
}

/// Asks the outer one, and aborts what runs at the inner one.
async fn aborted_inside(outer: &Gateway, inner: &Gateway, upstream: &Upstream) -> Response {
    let call = outer.post(CHAT, asks("silent", false));
    let call = tokio::spawn(call.header("x-run-id", "r-1").send());
    eventually(async || (upstream.open() == 1).then_some(())).await;
    let runs = inner.json("/runs").await;
    assert!(inner.abort(runs["runs"][0]["run"].as_str().unwrap()).await);
    within(call).await.unwrap().unwrap()
}

/// The run is over there, so it is over here.
#[test]
fn the_word_of_a_trusted_gateway_ends_the_call() {
    run(async {
        let (outer, inner, upstream) = nested(true).await;
        let answer = aborted_inside(&outer, &inner, &upstream).await;
        assert_eq!(answer.status(), 499);
        assert_eq!(answer.headers()["x-terminal-reason"], "aborted");
        assert_eq!(answer.headers()["x-should-retry"], "false");
        assert_eq!(answer.headers()["x-run-id"], "r-1");
        assert_eq!(upstream.models(), ["silent"]);
    });
}

/// It knows nothing of our runs, so what it says is a failure of its own.
#[test]
fn the_word_of_any_other_upstream_does_not() {
    run(async {
        let (outer, inner, upstream) = nested(false).await;
        let answer = aborted_inside(&outer, &inner, &upstream).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["x-served-model"], "ok");
        assert_eq!(answer.headers().get("x-terminal-reason"), None);
        assert_eq!(upstream.models(), ["silent", "ok"]);
    });
}
