//! Around layers that try again, and under one that answers.
//!
//! covers: A4

use http::Request;
use serde_json::Value;
use tower::ServiceBuilder;
use tower_agent::{
    Candidate, ModelFallbackLayer, PumpLayer, RetryBudgetLayer, Run, TerminalResponseLayer,
};

use super::*;
use crate::support::{
    DONE, PRELUDE, Upstream, attach, chat, failure, later, messages, no_delay, prompt,
};

#[tokio::test(start_paused = true)]
async fn candidates_share_the_time_that_the_caller_gives() {
    for (name, value) in [(NODE, "30"), (PYTHON, "30"), (GRPC, "30S")] {
        for script in [
            Script::before_head().never(),
            Script::sse().data(PRELUDE).never(),
        ] {
            let upstream = Upstream::script(script);
            let service = ServiceBuilder::new()
                .layer(layer())
                .layer(
                    ModelFallbackLayer::new(["a", "b", "c"].map(Candidate::new)).budget(no_delay()),
                )
                .service(upstream.clone());
            let run = Run::open();
            let (request, call) = attach(&run, prompt("a"));
            let start = Instant::now();

            let error = service
                .oneshot(with(request, &[(name, value)]))
                .await
                .unwrap_err();

            assert_eq!(reason_of(&error), Some(TerminalReason::CallerDeadline));
            assert_eq!(call.terminal_reason(), Some(TerminalReason::CallerDeadline));
            assert_eq!(upstream.times(start), [secs(0), secs(10), secs(20)]);
            assert_eq!(start.elapsed(), secs(30));
            assert_eq!(run.terminal_reason(), None);
        }
    }
}

/// covers: T26
#[tokio::test(start_paused = true)]
async fn no_try_begins_for_which_the_caller_does_not_wait() {
    // Shorter than the shortest try by a millisecond.
    let late = Script::before_head().wait(4.901).fail("reset");
    for (name, value) in [(NODE, "5"), (PYTHON, "5"), (GRPC, "5S")] {
        let upstream = Upstream::scripts([late.clone(), Script::sse().data(chat("a")).data(DONE)]);
        let service = ServiceBuilder::new()
            .layer(layer())
            .layer(RetryBudgetLayer::new(no_delay()))
            .service(upstream.clone());
        let request = with(prompt("a"), &[(name, value)]);

        service.clone().oneshot(request).await.unwrap_err();
        assert_eq!(upstream.calls(), 1, "{name}");

        let request = with(prompt("a"), &[(name, "6")]);
        if name != GRPC {
            let upstream =
                Upstream::scripts([late.clone(), Script::sse().data(chat("a")).data(DONE)]);
            let service = ServiceBuilder::new()
                .layer(layer())
                .layer(RetryBudgetLayer::new(no_delay()))
                .service(upstream.clone());
            service.oneshot(request).await.unwrap();
            assert_eq!(upstream.calls(), 2, "{name}");
        }
    }
}

/// covers: T26
#[tokio::test(start_paused = true)]
async fn a_deadline_within_a_try_starts_no_other() {
    let upstream = Upstream::scripts([Script::before_head().wait(5.0).fail("reset"), failure(500)]);
    let service = ServiceBuilder::new()
        .layer(layer())
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());

    let error = service
        .oneshot(with(prompt("a"), &[(NODE, "5")]))
        .await
        .unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::CallerDeadline));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn inside_of_a_retry_it_is_the_calls_deadline_all_the_same() {
    let upstream = Upstream::scripts([
        Script::before_head().wait(3.0).fail("reset"),
        Script::before_head().never(),
    ]);
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(layer())
        .service(upstream.clone());

    let outcome = Outcome::of(service.oneshot(with(prompt("a"), &[(NODE, "5")]))).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::CallerDeadline));
    assert_eq!(outcome.at, secs(5));
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_silence_of_a_try_is_forgotten_with_it() {
    let cut = |seconds| Script::sse().data(PRELUDE).wait(seconds).fail("reset");
    let upstream = Upstream::scripts([cut(4.0), cut(3.0)]);
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(layer())
        .service(upstream.clone());

    let request = with(prompt("a"), &[(PYTHON, "5")]);
    let outcome = Outcome::of(service.oneshot(request)).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, None);
    assert_eq!(outcome.at, secs(7));
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn it_is_504_in_each_dialect() {
    let responses = || Request::post("/v1/responses").body(()).unwrap();
    for (request, anthropic) in [(request(), false), (responses(), false), (messages(), true)] {
        for header in [(NODE, "5"), (PYTHON, "5"), (GRPC, "5S")] {
            let upstream = Upstream::script(Script::before_head().never());
            let service = ServiceBuilder::new()
                .layer(TerminalResponseLayer::new())
                .layer(layer())
                .service(upstream);

            let answer = service
                .oneshot(with(request.clone(), &[header]))
                .await
                .unwrap();

            assert_eq!(answer.status(), 504);
            assert_eq!(answer.headers()["x-terminal-reason"], "timeout");
            assert_eq!(answer.headers()["x-should-retry"], "false");
            let text = answer.into_body().read().await.whole();
            let body: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(body["error"]["type"], "timeout");
            assert_eq!(body["type"] == "error", anthropic);
            let message = body["error"]["message"].as_str().unwrap();
            assert!(message.contains("deadline of 5s"), "{message}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_falls_silent_ends_with_the_frame() {
    let upstream = Upstream::script(Script::sse().data(chat("a")).never());
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(layer())
        .service(upstream);

    let outcome = Outcome::of(service.oneshot(announcing(PYTHON, "5"))).await;
    let text = outcome.whole();

    let (_, frame) = text.split_once("event: error").unwrap();
    assert!(frame.contains("\"code\":\"timeout\""), "{frame}");
}

#[tokio::test(start_paused = true)]
async fn inside_of_a_pump_a_reader_that_stays_away_is_not_punished_and_silence_is_still_heard() {
    let script = Script::sse().repeat(10, 4.0, chat("a")).never();
    let upstream = Upstream::script(script);
    let service = ServiceBuilder::new()
        .layer(PumpLayer::new())
        .layer(layer())
        .service(upstream.clone());
    let start = Instant::now();
    let answer = service.oneshot(announcing(PYTHON, "5")).await.unwrap();
    later(100, || ()).await.unwrap();

    let back = Instant::now();
    let read = answer.into_body().read().await;

    assert_eq!(read.reason(), Some(TerminalReason::CallerDeadline));
    assert_eq!(read.frames, 10);
    assert_eq!(back.elapsed(), secs(45));
    assert_eq!(upstream.dropped().at, start + start.elapsed());
}
