//! A call that is over is tried no further, wherever it was.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    super::support::{Config, Gateway, Upstream, eventually, run, within},
    CHAT, asks,
};

/// Longer than any wait or window that another call could come after.
const LATER: Duration = Duration::from_millis(1600);

const LIMITS: &str = "[attempt]\nfirst_token_timeout = \"700ms\"\n[retry]";

/// A client that leaves once `calls` have come and `open` of them wait; no
/// other call follows.
async fn leaves(models: &[&str], stream: bool, calls: &[&str], open: usize) {
    let upstream = Upstream::start().await;
    let config = Config::candidates(upstream.addr, LIMITS, models);
    let gateway = Gateway::with(&config, &[]).await;
    let call = tokio::spawn(gateway.post(CHAT, asks(models[0], stream)).send());
    let there = || upstream.count() == calls.len() && upstream.open() == open;
    eventually(async || there().then_some(())).await;

    call.abort();

    let left = Instant::now();
    eventually(async || (upstream.open() == 0).then_some(())).await;
    assert!(left.elapsed() < Duration::from_millis(500), "not released");
    sleep(LATER).await;
    assert_eq!(upstream.models(), calls);
    let runs = gateway.json("/runs").await;
    assert_eq!(runs["runs"][0]["reason"], "client_disconnect");
    assert_eq!(runs["runs"][0]["in_flight"], 0);
}

#[test]
fn a_client_that_leaves_in_flight() {
    run(leaves(&["silent", "ok"], true, &["silent"], 1));
}

#[test]
fn a_client_that_leaves_before_the_first_content() {
    run(leaves(&["prelude", "ok"], true, &["prelude"], 1));
}

/// The upstream asked for a second.
#[test]
fn a_client_that_leaves_in_a_backoff() {
    run(leaves(&["429", "ok"], false, &["429"], 0));
}

#[test]
fn a_client_that_leaves_while_the_second_candidate_is_silent() {
    run(leaves(
        &["429-hour", "silent", "ok"],
        false,
        &["429-hour", "silent"],
        1,
    ));
}

#[test]
fn an_abort_in_a_backoff_is_answered_at_once_and_nothing_follows() {
    run(async {
        let upstream = Upstream::start().await;
        let config = Config::candidates(upstream.addr, LIMITS, &["429", "ok"]);
        let gateway = Gateway::with(&config, &[]).await;
        let call = gateway.post(CHAT, asks("429", false));
        let call = tokio::spawn(call.header("x-run-id", "r-1").send());
        eventually(async || (upstream.count() == 1 && upstream.open() == 0).then_some(())).await;

        let begun = Instant::now();
        assert!(gateway.abort("r-1").await);
        let answer = within(call).await.unwrap().unwrap();

        assert!(begun.elapsed() < Duration::from_millis(500), "it waited");
        assert_eq!(answer.status(), 499);
        assert_eq!(answer.headers()["x-terminal-reason"], "aborted");
        assert_eq!(answer.headers()["x-should-retry"], "false");
        sleep(LATER).await;
        assert_eq!(upstream.models(), ["429"]);
    });
}

/// Both passed at once: the run is over, and so nothing may be tried for it.
#[test]
fn a_ceiling_that_coincides_with_the_attempts_timeout_is_one_call() {
    for attempt in [
        "first_token_timeout = \"400ms\"",
        "max_time = \"400ms\"",
        "step_timeout = \"400ms\"",
    ] {
        run(async {
            let upstream = Upstream::start().await;
            let limits = format!("[run]\nmax_turn_time = \"400ms\"\n[attempt]\n{attempt}\n[retry]");
            let config = Config::candidates(upstream.addr, &limits, &["silent"]);
            let gateway = Gateway::with(&config, &[]).await;
            let answer = within(gateway.post(CHAT, asks("silent", true)).send());
            let answer = answer.await.unwrap();
            assert_eq!(answer.status(), 504, "{attempt}");
            assert_eq!(answer.headers()["x-terminal-reason"], "max_turn_time");
            sleep(Duration::from_millis(600)).await;
            assert_eq!(upstream.count(), 1, "{attempt}");
        });
    }
}
