//! Limits in shadow mode: what they would have ended, and whether they were wrong.
//!
//! covers: A12

use std::time::Duration;

use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    HardCeilingLayer, Run, RunEvent, RunLayer, RunNotice, RunRegistry, Scope, StepTimeoutLayer,
    TerminalReason, run::RunEvents,
};

use crate::support::{
    DONE, LogCapture, Outcome, PING, ReadExt, Script, Upstream, call_of, chat, poll_once,
    reason_of, request, request_of, secs,
};

const MINUTE: f64 = 60.0;

fn observing() -> StepTimeoutLayer {
    StepTimeoutLayer::new(secs(30)).observe()
}

/// An answer with a minute between tokens.
fn slow() -> Script {
    let script = Script::sse().data(chat("a"));
    script.repeat(2, MINUTE, chat("a")).data(DONE)
}

fn would_have_ended(reason: TerminalReason, seconds: u64) -> RunNotice {
    let limit = Some(secs(seconds));
    RunNotice::WouldHaveEnded { reason, limit }
}

fn false_positive(reason: TerminalReason, after: u64, took: u64) -> RunNotice {
    let [after, took] = [after, took].map(secs);
    RunNotice::FalsePositive {
        reason,
        after,
        took,
    }
}

/// Ends the run, and answers what was told of it before.
async fn told(run: &Run, events: RunEvents) -> Vec<RunNotice> {
    run.end(TerminalReason::Aborted);
    notices(events).await
}

/// What was told before the end, which comes last.
async fn notices(mut events: RunEvents) -> Vec<RunNotice> {
    let mut told = Vec::new();
    loop {
        match events.next().await.unwrap() {
            RunEvent::Notice { notice, .. } => told.push(notice),
            RunEvent::Ended { .. } => return told,
            lost => panic!("{lost:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_window_that_is_too_short_is_found_to_be_and_ends_nothing() {
    let heard = LogCapture::start();
    let run = Run::open();
    let events = run.subscribe();
    let (request, call) = call_of(&run);
    let upstream = Upstream::script(slow());
    let start = Instant::now();

    let answer = observing()
        .layer(upstream.clone())
        .oneshot(request)
        .await
        .unwrap();
    let text = answer.into_body().read().await.whole();

    assert_eq!(text, chat("a").repeat(3) + DONE);
    assert_eq!(start.elapsed(), secs(120));
    assert!(!upstream.is_dropped());
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(
        told(&run, events).await,
        [
            would_have_ended(TerminalReason::StepTimeout, 30),
            false_positive(TerminalReason::StepTimeout, 30, 120),
        ],
        "once, though two windows passed"
    );
    let logged = heard.events("false positive: a limit would have ended a node that completed");
    assert_eq!(logged.len(), 1);
    assert_eq!(logged[0]["level"], "WARN");
    assert_eq!(logged[0]["reason"], "step_timeout");
}

#[tokio::test(start_paused = true)]
async fn what_would_have_ended_is_told_when_it_would_have() {
    let run = Run::open();
    let mut events = run.subscribe();
    let start = Instant::now();
    let upstream = Upstream::script(Script::before_head().never());
    let call = observing().layer(upstream).oneshot(call_of(&run).0);

    let told = async {
        events.next().await.unwrap();
        assert_eq!(start.elapsed(), secs(30));
        run.end(TerminalReason::Aborted);
    };
    let (error, ()) = tokio::join!(call, told);

    assert_eq!(
        reason_of(&error.unwrap_err()),
        Some(TerminalReason::Aborted)
    );
}

#[tokio::test(start_paused = true)]
async fn what_fails_or_is_ended_later_was_rightly_suspected() {
    let registry = RunRegistry::new();
    let scripts = [
        Script::before_head().wait(MINUTE).fail("reset"),
        Script::json().wait(MINUTE).data("{}").status(500),
        slow().never(),
        Script::before_head().never(),
    ];
    for script in scripts {
        let stack = ServiceBuilder::new()
            .layer(RunLayer::new(registry.clone()))
            .layer(HardCeilingLayer::new(secs(100)))
            .layer(observing())
            .service(Upstream::script(script));
        if let Ok(answer) = stack.oneshot(request()).await {
            let _ = answer.into_body().read().await;
        }
    }

    let report = registry.shadow();
    assert_eq!((report.would_have_ended, report.completed), (4, 0));
}

#[tokio::test(start_paused = true)]
async fn an_error_after_the_window_is_the_upstreams_own() {
    let run = Run::open();
    let (request, call) = call_of(&run);
    let upstream = Upstream::script(Script::before_head().wait(MINUTE).fail("reset"));
    let mut future = Box::pin(observing().layer(upstream).oneshot(request));
    assert!(poll_once(&mut future).is_pending());
    assert_eq!(call.snapshot().deadlines.step, None, "it has no window");

    let error = future.await.unwrap_err();

    assert_eq!(reason_of(&error), None);
    let reason = call.terminal_reason();
    assert!(
        matches!(reason, Some(TerminalReason::Failed(_))),
        "{reason:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_registry_counts_what_would_have_ended_and_what_of_it_completed() {
    for scope in [Scope::Found, Scope::Run] {
        let registry = RunRegistry::new();
        let events = registry.subscribe();
        let stack = ServiceBuilder::new()
            .layer(RunLayer::new(registry.clone()))
            .layer(observing().scope(scope))
            .service(Upstream::script(slow()));

        let answer = stack.oneshot(request()).await.unwrap();
        answer.into_body().read().await.whole();

        let report = registry.shadow();
        assert_eq!((report.would_have_ended, report.completed), (1, 1));
        assert_eq!(
            notices(events).await,
            [
                RunNotice::Opened,
                would_have_ended(TerminalReason::StepTimeout, 30),
                false_positive(TerminalReason::StepTimeout, 30, 120),
            ],
            "before the end, which is the last"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_suspected_once_whichever_of_its_calls_is_silent() {
    let run = Run::open();
    let events = run.subscribe();
    let layer = observing().scope(Scope::Run);
    for _ in 0..2 {
        let upstream = Upstream::script(slow());
        let answer = layer.layer(upstream).oneshot(call_of(&run).0).await;
        answer.unwrap().into_body().read().await.whole();
    }

    let expected = [would_have_ended(TerminalReason::StepTimeout, 30)];
    assert_eq!(told(&run, events).await, expected);
}

/// covers: E5
#[tokio::test(start_paused = true)]
async fn a_safety_limit_may_go_on_ending_things_beside_it() {
    for inside in [true, false] {
        let run = Run::open();
        let events = run.subscribe();
        let start = Instant::now();
        let safety = StepTimeoutLayer::new(secs(300));
        let (outer, inner) = if inside {
            (observing(), safety)
        } else {
            (safety, observing())
        };
        let stack = ServiceBuilder::new().layer(outer).layer(inner);
        let stack = stack.service(Upstream::script(Script::before_head().never()));

        let error = stack.oneshot(call_of(&run).0).await.unwrap_err();

        assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
        assert_eq!(start.elapsed(), secs(300));
        let expected = [would_have_ended(TerminalReason::StepTimeout, 30)];
        assert_eq!(told(&run, events).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_and_a_total_that_are_observed_end_nothing() {
    let run = Run::open();
    let events = run.subscribe();
    let layer = HardCeilingLayer::new(secs(50)).timeout(Some(secs(70)));
    let layer = layer.caller_deadline(true).observe();
    let (mut request, call) = call_of(&run);
    let headers = request.headers_mut();
    headers.insert("x-stainless-timeout", "1".parse().unwrap());
    let upstream = Upstream::script(
        Script::before_head()
            .wait(MINUTE)
            .head("text/event-stream")
            .data(chat("a"))
            .wait(MINUTE)
            .data(DONE),
    );

    let answer = layer.layer(upstream).oneshot(request).await.unwrap();
    assert_eq!(call.snapshot().time_left, None);
    answer.into_body().read().await.whole();

    assert_eq!(
        told(&run, events).await,
        [
            would_have_ended(TerminalReason::HardCeiling, 50),
            would_have_ended(TerminalReason::CallerDeadline, 70),
            false_positive(TerminalReason::HardCeiling, 50, 120),
            false_positive(TerminalReason::CallerDeadline, 70, 120),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_heartbeats_of_a_local_model_can_be_observed() {
    let run = Run::open();
    let events = run.subscribe();
    let script = Script::sse().data(PING).wait(45.0).data(chat("a"));
    let upstream = Upstream::script(script.data(DONE));
    let layer = StepTimeoutLayer::local().observe();

    let answer = layer.layer(upstream).oneshot(call_of(&run).0).await;
    answer.unwrap().into_body().read().await.whole();

    assert_eq!(
        told(&run, events).await,
        [
            would_have_ended(TerminalReason::StepTimeout, 20),
            false_positive(TerminalReason::StepTimeout, 20, 45),
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn who_is_well_within_a_limit_is_not_told_of() {
    let run = Run::open();
    let events = run.subscribe();
    let layers = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(600)).observe())
        .layer(StepTimeoutLayer::new(secs(61)).observe());

    let answer = layers
        .service(Upstream::script(slow()))
        .oneshot(call_of(&run).0);
    answer.await.unwrap().into_body().read().await.whole();

    assert_eq!(told(&run, events).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_taken_out_of_a_window_that_is_observed() {
    let run = Run::open();
    let events = run.subscribe();
    let upstream = Upstream::script(Script::before_head().wait(100.0).head("application/json"));
    let pause = run.pause();
    let resumed = async {
        tokio::time::sleep(secs(75)).await;
        drop(pause);
    };

    let call = observing().layer(upstream).oneshot(request_of(&run));
    let (answer, ()) = tokio::join!(call, resumed);
    answer.unwrap().into_body().read().await.whole();

    assert_eq!(told(&run, events).await, []);
}

#[test]
fn a_notice_serializes_its_times_in_milliseconds() {
    let notice = RunNotice::WouldHaveEnded {
        reason: TerminalReason::StepTimeout,
        limit: Some(Duration::from_millis(1500)),
    };

    let json = serde_json::to_value(notice).unwrap();

    assert_eq!(json["kind"], "would_have_ended");
    assert_eq!(json["reason"], "step_timeout");
    assert_eq!(json["limit_ms"], 1500);
}

#[tokio::test(start_paused = true)]
async fn shadow_mode_outlives_a_missing_limit() {
    let run = Run::open();
    let (request, call) = call_of(&run);
    let layer = StepTimeoutLayer::optional(None).observe().first(secs(5));
    let upstream = Upstream::script(Script::before_head().wait(MINUTE).data("{}"));

    Outcome::of(layer.layer(upstream).oneshot(request)).await;

    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_ceiling_moves_with_the_ceiling_that_the_program_moves() {
    let run = Run::open();
    let events = run.subscribe();
    let upstream = Upstream::script(Script::sse().wait(MINUTE).data(DONE));
    let shadow = HardCeilingLayer::new(secs(30)).scope(Scope::Run).observe();
    let enforced = HardCeilingLayer::new(secs(50)).scope(Scope::Run);
    let service = enforced.layer(shadow.layer(upstream));
    let answer = service.oneshot(run.attach(request())).await.unwrap();

    assert!(run.extend_once(secs(40)));
    answer.into_body().read().await.whole();
    run.end(TerminalReason::Completed);

    let would = |notice: &RunNotice| matches!(notice, RunNotice::WouldHaveEnded { .. });
    assert!(!notices(events).await.iter().any(would));
}
