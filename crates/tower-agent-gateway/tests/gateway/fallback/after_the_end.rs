//! A call that is over is tried no further, wherever it was.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::sleep;

use crate::{
    net::{Ask, CHAT, asks, eventually, run, within},
    support::Config,
};

/// Time for another call, should somebody make one.
const LATER: Duration = Duration::from_millis(1600);

/// Nothing of this comes while a test waits: neither a silence that is too long,
/// nor the end of a wait before a repeat.
const LIMITS: &str = "[attempt]\nfirst_token_timeout = \"1h\"\n[retry]";

/// A client that leaves once `calls` have come and `open` of them wait; no
/// other call follows.
async fn leaves(models: &[&str], stream: bool, calls: &[&str], open: usize) {
    let (upstream, gateway) = Config::new(LIMITS).start_with_model(models).await;
    let call = tokio::spawn(gateway.post(CHAT, asks(models[0], stream)).ask());
    let there = || upstream.count() == calls.len() && upstream.open() == open;
    eventually(async || there().then_some(())).await;

    call.abort();

    upstream.until_open(0).await;
    let reason = eventually(async || {
        let run = gateway.json("/runs").await["runs"][0].clone();
        let over = !run["reason"].is_null() && run["in_flight"] == 0;
        over.then(|| run["reason"].clone())
    });
    assert_eq!(reason.await, "client_disconnect");
    sleep(LATER).await;
    assert_eq!(upstream.models(), calls);
}

/// covers: C1, T44
#[test]
fn a_client_that_leaves_in_flight() {
    run(leaves(&["silent", "ok"], true, &["silent"], 1));
}

/// covers: C1, T44
#[test]
fn a_client_that_leaves_before_the_first_content() {
    run(leaves(&["prelude", "ok"], true, &["prelude"], 1));
}

/// The upstream asked for more time than the test has.
/// covers: C1, T44
#[test]
fn a_client_that_leaves_in_a_backoff() {
    run(leaves(&["429-later"], false, &["429-later"], 0));
}

/// covers: C1, T44
#[test]
fn a_client_that_leaves_while_the_second_candidate_is_silent() {
    run(leaves(
        &["429-hour", "silent", "ok"],
        false,
        &["429-hour", "silent"],
        1,
    ));
}

/// covers: T31
#[test]
fn an_abort_in_a_backoff_is_answered_at_once_and_nothing_follows() {
    run(async {
        let (upstream, gateway) = Config::new(LIMITS).start_with_model(&["429-later"]).await;
        let call = gateway.post(CHAT, asks("429-later", false));
        let call = tokio::spawn(call.header("x-run-id", "r-1").ask());
        eventually(async || (upstream.count() == 1 && upstream.open() == 0).then_some(())).await;

        assert!(gateway.abort("r-1").await);
        let answer = within(call).await.unwrap();

        assert_eq!(answer.status, 499);
        assert_eq!(answer.headers["x-terminal-reason"], "aborted");
        assert_eq!(answer.headers["x-should-retry"], "false");
        sleep(LATER).await;
        assert_eq!(upstream.models(), ["429-later"]);
    });
}

/// Both passed at once: the run is over, and so nothing may be tried for it.
/// covers: T45
#[test]
fn a_ceiling_that_coincides_with_the_attempts_timeout_is_one_call() {
    let each = ["first_token_timeout", "max_time", "step_timeout"].map(async |attempt| {
        let limits =
            format!("[run]\nmax_turn_time = \"2s\"\n[attempt]\n{attempt} = \"2s\"\n[retry]");
        let (upstream, gateway) = Config::new(limits).start_with_model(&["silent"]).await;
        let answer = gateway.post(CHAT, asks("silent", true)).ask().await;
        assert_eq!(answer.status, 504, "{attempt}");
        assert_eq!(answer.headers["x-terminal-reason"], "max_turn_time");
        sleep(LATER).await;
        assert_eq!(upstream.count(), 1, "{attempt}");
    });
    run(join_all(each));
}

/// Another call of the same run makes one error too many while this one waits
/// before a repeat, or for its second candidate.
#[test]
fn a_cap_that_another_call_of_the_run_hits_ends_a_call_wherever_it_is() {
    // A conflict is no reason to ask another candidate.
    for (models, calls) in [
        (["409-later", "ok"], ["409-later"].as_slice()),
        (["429-hour", "silent"], &["429-hour", "silent"]),
    ] {
        run(async {
            let limits = format!("{LIMITS}\nper_run = 1\nmax_attempts_per_candidate = 2");
            let models = [models[0], models[1], "400"];
            let (upstream, gateway) = Config::new(limits).start_with_model(&models).await;
            let ask = |model| {
                gateway
                    .post(CHAT, asks(model, false))
                    .header("x-run-id", "r-1")
            };
            let call = tokio::spawn(ask(models[0]).ask());
            upstream.until_count(calls.len()).await;

            for _ in 0..2 {
                let answer = ask("400").ask().await;
                assert_eq!(answer.status, 400);
            }
            let answer = within(call).await.unwrap();

            assert_eq!(answer.status, 422);
            let reason = &answer.headers["x-terminal-reason"];
            assert_eq!(reason, "per_dispatch_errors_exceeded");
            sleep(LATER).await;
            let tried: Vec<_> = upstream
                .models()
                .into_iter()
                .filter(|it| it != "400")
                .collect();
            assert_eq!(tried, calls);
        });
    }
}

#[test]
fn an_abort_while_a_candidate_is_silent_asks_no_other() {
    run(async {
        let models = ["429-hour", "silent", "ok"];
        let (upstream, gateway) = Config::new(LIMITS).start_with_model(&models).await;
        let call = gateway.post(CHAT, asks("429-hour", false));
        let call = tokio::spawn(call.header("x-run-id", "r-1").ask());
        upstream.until_count(2).await;

        assert!(gateway.abort("r-1").await);
        let answer = within(call).await.unwrap();

        assert_eq!(answer.headers["x-terminal-reason"], "aborted");
        upstream.until_open(0).await;
        sleep(LATER).await;
        assert_eq!(upstream.models(), ["429-hour", "silent"]);
    });
}
