//! Failures of a run that spans several calls.

use crate::{
    net::{Ask, CHAT, asks, refusal, run},
    support::Config,
};

/// Asks until the run is over; how often the upstream's own answer came.
async fn failures(limits: &str, reason: &str) -> usize {
    let limits = format!("[retry]\nmax_attempts_per_candidate = 1\n{limits}");
    let (upstream, gateway) = Config::new(limits).start_with_model(&["500", "503"]).await;
    let ask = async |id: &str| {
        let request = gateway.post(CHAT, asks("500", false));
        request.header("x-run-id", id).ask().await
    };
    for calls in 1..20 {
        let answer = ask("r-1").await;
        if answer.status == 503 {
            assert_eq!(answer.headers.get("x-terminal-reason"), None);
            assert_eq!(answer.text(), refusal(503));
            assert_eq!(upstream.count(), 2 * calls);
            continue;
        }
        assert_eq!(answer.status, 422);
        assert_eq!(answer.headers["x-terminal-reason"], reason);
        assert_eq!(answer.headers["x-should-retry"], "false");
        let body = answer.json();
        assert_eq!(body["error"]["code"], reason);
        assert_eq!(upstream.count(), 2 * (calls - 1), "no call for it");
        // Another run has its own errors.
        assert_eq!(ask("r-2").await.status, 503);
        assert_eq!(gateway.json("/runs/r-1").await["reason"], reason);
        return calls - 1;
    }
    panic!("the run never ends");
}

/// The one that is one too many is still answered as the upstream's own.
/// covers: T46
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
/// covers: D4
#[test]
fn a_run_with_too_many_errors_in_a_row_is_over() {
    let reason = "consecutive_errors";
    assert_eq!(run(failures("consecutive_errors = 3", reason)), 3);
}

/// What was repaired inside of a call never reached the harness.
#[test]
fn a_failure_that_another_candidate_made_good_is_not_counted() {
    run(async {
        let limits = "[retry]\nper_run = 1\nper_error_key = 1\nbase_delay = \"1ms\"";
        let (upstream, gateway) = Config::new(limits).start_with_model(&["500", "ok"]).await;
        for calls in 1..6 {
            let request = gateway.post(CHAT, asks("500", false));
            let answer = request.header("x-run-id", "r-1").ask().await;
            assert_eq!(answer.status, 200);
            assert_eq!(upstream.count(), 3 * calls);
        }
    });
}

#[test]
fn without_a_limit_a_run_may_fail_for_ever() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["500"]).await;
        for _ in 0..15 {
            let request = gateway.post(CHAT, asks("500", false));
            let answer = request.header("x-run-id", "r-1").ask().await;
            assert_eq!(answer.status, 500);
        }
        assert_eq!(upstream.count(), 15, "one attempt each");
    });
}
