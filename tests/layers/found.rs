//! What the random stacks found, each in its smallest form.

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, HardCeilingLayer, LoopGuardLayer, ModelFallbackLayer, ProgressLayer, ReplayBody,
    RetryBudgetLayer, RunLayer, RunRegistry, StepTimeoutLayer, TerminalReason, TurnCapLayer,
};

use crate::support::{
    PING, PRELUDE, ReadExt, Script, Upstream, chat, failure, healthy, no_delay, prompt, reason_of,
    request, secs,
};

fn fallback(models: &[&str]) -> ModelFallbackLayer {
    ModelFallbackLayer::new(models.iter().map(|model| Candidate::new(*model)))
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_ready_at_the_very_deadline_is_not_called() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(5)))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone().busy(secs(5)));

    let error = service.oneshot(prompt("m")).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_is_never_ready_has_its_share_of_the_time_and_no_more() {
    let upstream = Upstream::scripts([failure(500)]);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(9)))
        .layer(fallback(&["a", "b", "c"]))
        .service(upstream.clone().busy(secs(6)));
    let start = Instant::now();

    let answer = service.oneshot(prompt("a")).await.unwrap();

    // b is given up at half of the nine seconds; c finds the service ready.
    assert_eq!(answer.headers()["x-served-model"], "c");
    assert_eq!(start.elapsed(), secs(6));
    assert!(upstream.requests()[1].body().contains(r#""c""#));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_beats_a_hold_that_ends_in_the_same_instant() {
    let upstream = Upstream::scripts([Script::sse().data(PRELUDE).never()]);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(5)))
        .layer(RetryBudgetLayer::new(no_delay()).hold(secs(5)))
        .service(upstream);

    let error = service.oneshot(prompt("m")).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
}

#[tokio::test(start_paused = true)]
async fn nothing_comes_after_the_error_of_an_attempt() {
    let upstream = Upstream::scripts([Script::sse().data(chat("a")).fail("reset")]);
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let answer = service.oneshot(prompt("m")).await.unwrap();
    let run = upstream.requests()[0].run().run();
    let mut body = answer.into_body();
    body.frame().await.unwrap().unwrap();

    body.frame().await.unwrap().unwrap_err();
    run.end(TerminalReason::Shutdown);

    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_call_is_over_with_the_last_of_its_body_though_the_body_is_kept() {
    let upstream = Upstream::scripts([healthy()]);
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let mut body = service.oneshot(prompt("m")).await.unwrap().into_body();

    while let Some(frame) = body.frame().await {
        frame.unwrap();
    }

    let run = upstream.requests()[0].run().run();
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_innermost_fallback_says_who_served() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = ServiceBuilder::new()
        .layer(fallback(&["a", "b"]))
        .layer(fallback(&["a", "b"]))
        .service(upstream.clone());

    let answer = service.oneshot(prompt("a")).await.unwrap();

    assert_eq!(answer.headers()["x-served-model"], "b");
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(upstream.requests()[1].body().contains(r#""b""#));
    answer.into_body().read().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_makes_no_attempt_pays_nothing_in() {
    let budget = no_delay().shared(1.0, 0);
    let upstream = Upstream::scripts([failure(500)]);
    // Opened with the first attempt of the fallback, the limit has passed when
    // the service is ready for the second.
    let service = ServiceBuilder::new()
        .layer(fallback(&["a", "b"]))
        .layer(HardCeilingLayer::new(secs(3)))
        .layer(RetryBudgetLayer::new(
            budget.clone().max_attempts_per_candidate(1),
        ))
        .service(upstream.clone().busy(secs(3)));

    service.oneshot(prompt("a")).await.unwrap_err();

    assert_eq!(upstream.calls(), 1);
    assert!(budget.withdraw(Some("a")).is_some());
    assert!(budget.withdraw(Some("b")).is_none());
}

#[tokio::test(start_paused = true)]
async fn heartbeats_are_seen_past_a_layer_that_inserts_comments() {
    let script = Script::sse().data(PRELUDE).data(PING).never();
    let service = ServiceBuilder::new()
        .layer(StepTimeoutLayer::local())
        .layer(ProgressLayer::new().keep_alive(Some(secs(6))))
        .service(Upstream::script(script));
    let start = Instant::now();

    let answer = service.oneshot(request()).await.unwrap();
    // A stream that is kept alive never ends of itself.
    let read = timeout(secs(60), answer.into_body().read()).await.unwrap();

    let reason = reason_of(&read.end.unwrap_err());
    assert_eq!(reason, Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(20));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_one_turn_on_both_sides_of_the_layer_that_opens_it() {
    let service = ServiceBuilder::new()
        .layer(TurnCapLayer::new(1))
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(TurnCapLayer::new(1))
        .service(Upstream::script(healthy()));

    let answer = service.oneshot(request()).await.unwrap();

    let run = answer.extensions().get::<tower_agent::Run>().unwrap().run();
    assert_eq!(run.turns(), 1);
    answer.into_body().read().await.end.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_smaller_limit_of_loops_holds_though_it_stands_further_in() {
    let action = r#",{"role":"assistant","tool_calls":[{"id":"c","type":"function",
        "function":{"name":"poll","arguments":"{}"}}]},
        {"role":"tool","tool_call_id":"c","content":"not yet"}"#;
    let body = format!(
        r#"{{"messages":[{{"role":"user","content":"go"}}{}]}}"#,
        action.repeat(2),
    );
    for (outer, inner) in [(3, 2), (2, 3)] {
        let upstream = Upstream::scripts([healthy()]);
        let service = ServiceBuilder::new()
            .layer(LoopGuardLayer::new().stop(outer))
            .layer(LoopGuardLayer::new().stop(inner))
            .service(upstream.clone());
        let request = Request::post("/v1/chat/completions");
        let request = request.body(ReplayBody::from(body.clone())).unwrap();

        let error = service.oneshot(request).await.unwrap_err();

        assert_eq!(reason_of(&error), Some(TerminalReason::LoopDetected));
        assert_eq!(upstream.calls(), 0);
    }
}
