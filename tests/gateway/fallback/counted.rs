//! Failures of a run that spans several calls.

use serde_json::Value;

use crate::net::{CHAT, Config, Gateway, Upstream, asks, refusal, run, within};

/// Asks until the run is over; how often the upstream's own answer came.
async fn failures(limits: &str, reason: &str) -> usize {
    let upstream = Upstream::model().await;
    let limits = format!("[retry]\nmax_attempts_per_candidate = 1\n{limits}");
    let config = Config::candidates(upstream.addr, &limits, &["500", "503"]);
    let gateway = Gateway::with(&config, &[]).await;
    let ask = async |id: &str| {
        let request = gateway.post(CHAT, asks("500", false));
        within(request.header("x-run-id", id).send()).await.unwrap()
    };
    for calls in 1..20 {
        let answer = ask("r-1").await;
        if answer.status() == 503 {
            assert_eq!(answer.headers().get("x-terminal-reason"), None);
            assert_eq!(within(answer.text()).await.unwrap(), refusal(503));
            assert_eq!(upstream.count(), 2 * calls);
            continue;
        }
        assert_eq!(answer.status(), 422);
        assert_eq!(answer.headers()["x-terminal-reason"], reason);
        assert_eq!(answer.headers()["x-should-retry"], "false");
        let body: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
        assert_eq!(body["error"]["code"], reason);
        assert_eq!(upstream.count(), 2 * (calls - 1), "no call for it");
        // Another run has its own errors.
        assert_eq!(ask("r-2").await.status(), 503);
        assert_eq!(gateway.json("/runs/r-1").await["reason"], reason);
        return calls - 1;
    }
    panic!("the run never ends");
}

/// The one that is one too many is still answered as the upstream's own.
#[test]
fn a_run_with_too_many_errors_is_over() {
    let reason = "per_dispatch_errors_exceeded";
    assert_eq!(run(failures("per_run = 2", reason)), 3);
}

#[test]
fn a_run_with_one_error_too_often_is_over() {
    let reason = "retry_budget_exceeded";
    assert_eq!(run(failures("per_error_key = 1", reason)), 2);
}

/// Off unless it is set, whatever else is.
#[test]
fn a_run_with_too_many_errors_in_a_row_is_over() {
    let reason = "consecutive_errors";
    assert_eq!(run(failures("consecutive_errors = 2", reason)), 3);
}

/// What was repaired inside of a call never reached the harness.
#[test]
fn a_failure_that_another_candidate_made_good_is_not_counted() {
    run(async {
        let upstream = Upstream::model().await;
        let limits = "[retry]\nper_run = 1\nper_error_key = 1\nbase_delay = \"1ms\"";
        let config = Config::candidates(upstream.addr, limits, &["500", "ok"]);
        let gateway = Gateway::with(&config, &[]).await;
        for calls in 1..6 {
            let request = gateway.post(CHAT, asks("500", false));
            let answer = within(request.header("x-run-id", "r-1").send()).await;
            assert_eq!(answer.unwrap().status(), 200);
            assert_eq!(upstream.count(), 3 * calls);
        }
    });
}

#[test]
fn without_a_limit_a_run_may_fail_for_ever() {
    run(async {
        let upstream = Upstream::model().await;
        let config = Config::candidates(upstream.addr, "", &["500"]);
        let gateway = Gateway::with(&config, &[]).await;
        for _ in 0..15 {
            let request = gateway.post(CHAT, asks("500", false));
            let answer = within(request.header("x-run-id", "r-1").send()).await;
            assert_eq!(answer.unwrap().status(), 500);
        }
        assert_eq!(upstream.count(), 15, "one attempt each");
    });
}
