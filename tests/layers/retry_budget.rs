//! Repeats, and everything that must not be repeated.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    HardCeilingLayer, RetryBudget, RetryBudgetLayer, Run, StepTimeoutLayer, TerminalReason,
    attempt::Tries,
    upstream::{Failure, FailureClass},
};

use crate::support::{DONE, PRELUDE, ReadExt, Script, Several, chat, prompt, reason_of, secs};

/// Repeats at once, so that times tell what else waits.
fn quick() -> RetryBudget {
    RetryBudget::new().delays(Duration::ZERO, Duration::ZERO)
}

fn failing(status: u16) -> Script {
    let body = r#"{"error":{"message":"no","type":"x"}}"#;
    Script::json().status(status).data(body)
}

fn healthy() -> Script {
    Script::sse().data(PRELUDE).data(chat("a")).data(DONE)
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_repeated_and_the_second_answer_served() {
    let upstream = Several::new([failing(500), healthy()]);
    let service = RetryBudgetLayer::new(quick()).layer(upstream.clone());
    let run = Run::open();

    let answer = service
        .oneshot(run.attach(prompt("m", true)))
        .await
        .unwrap();

    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["x-attempt"], "2");
    assert_eq!(
        answer.into_body().read().await.whole(),
        [PRELUDE, &chat("a"), DONE].concat()
    );
    assert_eq!(
        upstream.header("x-attempt"),
        [Some("1".into()), Some("2".into())]
    );
    let [first, second] = &upstream.seen()[..] else {
        panic!()
    };
    assert_eq!(first.body, second.body);
    let class = FailureClass::Server;
    assert_eq!(
        first.run.terminal_reason(),
        Some(TerminalReason::Failed(class))
    );
    assert_eq!(
        second.run.terminal_reason(),
        Some(TerminalReason::Completed)
    );
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_node_the_run_is_the_call() {
    let upstream = Several::new([failing(500), healthy()]);
    let service = RetryBudgetLayer::new(quick()).layer(upstream.clone());

    let answer = service.oneshot(prompt("m", true)).await.unwrap();
    let run = answer.extensions().get::<Run>().unwrap().clone();
    assert_eq!(run.terminal_reason(), None);
    answer.into_body().read().await.whole();

    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(upstream.calls(), 2);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_last_answer_is_handed_on_byte_for_byte() {
    let upstream = Several::new([failing(500), failing(503).header("x-request-id", "r")]);
    let service = RetryBudgetLayer::new(quick()).layer(upstream.clone());

    let answer = service.oneshot(prompt("m", true)).await.unwrap();

    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["x-request-id"], "r");
    let failure = answer.extensions().get::<Failure>().unwrap().clone();
    assert_eq!(failure.class, FailureClass::Server);
    let tries = answer.extensions().get::<Tries>().unwrap();
    assert_eq!(tries.all().len(), 2);
    let run = answer.extensions().get::<Run>().unwrap().clone();
    let text = answer.into_body().read().await.whole();
    assert_eq!(text, r#"{"error":{"message":"no","type":"x"}}"#);
    assert_eq!(upstream.calls(), 2);
    assert_eq!(
        run.terminal_reason(),
        Some(TerminalReason::Failed(failure.class))
    );
}

#[tokio::test(start_paused = true)]
async fn a_bad_request_is_sent_once() {
    let upstream = Several::new([failing(400)]);
    let service = RetryBudgetLayer::new(quick()).layer(upstream.clone());

    let answer = service.oneshot(prompt("m", true)).await.unwrap();

    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn deadlines_that_coincide_start_one_call() {
    let upstream = Several::new([Script::before_head().never()]);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(10)))
        .layer(RetryBudgetLayer::new(quick()))
        .layer(HardCeilingLayer::new(secs(10)))
        .layer(StepTimeoutLayer::new(secs(10)))
        .service(upstream.clone());
    let start = Instant::now();

    let error = service.oneshot(prompt("m", true)).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
    assert_eq!(upstream.calls(), 1);
    assert_eq!(start.elapsed(), secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_repeated_once() {
    let upstream = Several::new([Script::sse().data(PRELUDE).never()]);
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(quick().max_attempts_per_candidate(5)))
        .layer(StepTimeoutLayer::new(secs(10)))
        .service(upstream.clone());

    let error = service.oneshot(prompt("m", true)).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_in_the_backoff_is_not_tried_again() {
    let upstream = Several::new([failing(429).header("retry-after", "30"), healthy()]);
    let service = RetryBudgetLayer::new(quick()).layer(upstream.clone());
    let run = Run::open();
    let call = service.oneshot(run.attach(prompt("m", true)));
    let ended = crate::support::later(10, {
        let run = run.clone();
        move || run.end(TerminalReason::Aborted)
    });
    let start = Instant::now();

    let error = call.await.unwrap_err();

    assert!(ended.await.unwrap());
    assert_eq!(start.elapsed(), secs(10));
    assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
    assert_eq!(upstream.calls(), 1);
    assert_eq!(run.in_flight(), 0);
}
