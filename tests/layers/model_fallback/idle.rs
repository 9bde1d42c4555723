//! Runs that hear nothing but silence.
//!
//! covers: F11

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt};
use tower_agent::{
    IdleBreaker, RetryBudget, RetryBudgetLayer, Run, RunLayer, RunRegistry, StepTimeoutLayer,
    TerminalReason, TerminalResponseLayer,
};

use super::{asks, models};
use crate::support::{
    DONE, LogCapture, Outcome, PRELUDE, Place, ReadExt, Script, Stack, StackService, Upstream,
    attach, chat, failure, healthy, no_delay, prompt, prompt_as, prompt_json, reason_of, secs,
};

fn breaker(then: IdleBreaker) -> RetryBudget {
    // Four that are silent are one failure four times as well.
    no_delay().per_error_key(None).idle_breaker(5, then)
}

/// Repeats alone, fallback alone, and both with one budget: an attempt may be
/// silent for ten seconds.
fn services(budget: &RetryBudget, upstream: &Upstream) -> [StackService; 3] {
    let silent = Stack::default().attempt_step(10);
    let repeats = silent.clone().budget(budget.clone());
    let fallback = silent.layer(Place::Fallback, models(["a", "b"]).budget(budget.clone()));
    let nested = fallback.clone().budget(budget.clone());
    [repeats, fallback, nested].map(|stack| stack.build(upstream))
}

fn call(run: &Run, stream: bool) -> Request<Full<Bytes>> {
    run.attach(prompt_as("a", stream))
}

#[tokio::test(start_paused = true)]
async fn the_fifth_silent_attempt_in_a_row_ends_the_run() {
    // Repeats make two attempts of a call that streams and one of another,
    // candidates are two, and both together make the product.
    for (which, stream, calls) in [
        (0, true, 3),
        (0, false, 5),
        (1, true, 3),
        (1, false, 3),
        (2, true, 2),
        (2, false, 3),
    ] {
        for script in [
            Script::before_head().never(),
            Script::json().data("{").never(),
        ] {
            let upstream = Upstream::script(script);
            let service = services(&breaker(IdleBreaker::End), &upstream)[which].clone();
            let heard = LogCapture::start();
            let run = Run::open();
            let start = Instant::now();
            for _ in 1..calls {
                let error = service.clone().oneshot(call(&run, stream)).await;
                let silent = Some(TerminalReason::StepTimeout);
                assert_eq!(reason_of(&error.unwrap_err()), silent);
                assert_eq!(run.terminal_reason(), None);
            }
            assert!(upstream.calls() < 5);

            let error = service.clone().oneshot(call(&run, stream)).await;

            let idle = Some(TerminalReason::IdleCircuitOpen);
            assert_eq!(reason_of(&error.unwrap_err()), idle, "{which} {stream}");
            assert_eq!(upstream.calls(), 5);
            assert_eq!(start.elapsed(), secs(50));
            assert_eq!(run.terminal_reason(), idle);
            assert_eq!(run.in_flight(), 0);
            let stopped = heard.events("no further attempt");
            assert_eq!(stopped.last().unwrap()["denied"], "idle");
            let idle_events = stopped.iter().filter(|event| event["denied"] == "idle");
            assert_eq!(idle_events.count(), 1);

            assert!(service.oneshot(call(&run, stream)).await.is_err());
            assert_eq!(upstream.calls(), 5, "it is over");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_shows_life_but_no_content_is_silent_too() {
    let upstream = Upstream::script(Script::sse().data(PRELUDE).never());
    let [.., service] = services(&breaker(IdleBreaker::End), &upstream);
    let run = Run::open();
    asks(&service, &upstream, call(&run, true)).await;

    asks(&service, &upstream, call(&run, true)).await;

    assert_eq!(upstream.calls(), 5);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::IdleCircuitOpen));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_is_told_422_in_the_shape_of_the_dialect() {
    let upstream = Upstream::script(Script::before_head().never());
    let budget = breaker(IdleBreaker::End).max_attempts_per_candidate(5);
    let candidates = ["a", "b", "c", "d", "e"];
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(models(candidates).budget(budget.clone()))
        .layer(RetryBudgetLayer::new(budget))
        .layer(StepTimeoutLayer::new(secs(10)))
        .service(upstream.clone());

    let answer = service.oneshot(prompt_json("a")).await.unwrap();

    assert_eq!(answer.status(), 422);
    assert_eq!(answer.headers()["x-terminal-reason"], "idle_circuit_open");
    assert_eq!(answer.headers()["x-should-retry"], "false");
    let body = answer.into_body().read().await.whole();
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["error"]["code"], "idle_circuit_open");
    assert_eq!(upstream.calls(), 5);
}

/// How many silent attempts a run makes after something else, until it ends.
async fn silent_ones_after(which: usize, before: Script) -> usize {
    let upstream = Upstream::script(healthy());
    let budget = breaker(IdleBreaker::End).per_run(None);
    let service = services(&budget, &upstream)[which].clone();
    let run = Run::open();
    // Four that are silent, or three.
    let silent = Script::before_head().never();
    for model in ["a", "b"] {
        upstream.play(model, silent.clone());
    }
    for _ in 0..3 {
        if upstream.calls() < 3 {
            asks(&service, &upstream, call(&run, false)).await;
        }
    }
    for model in ["a", "b"] {
        upstream.play(model, before.clone());
    }
    asks(&service, &upstream, call(&run, false)).await;
    assert_eq!(run.terminal_reason(), None);
    for model in ["a", "b"] {
        upstream.play(model, silent.clone());
    }
    let others = upstream.calls();
    for _ in 0..9 {
        asks(&service, &upstream, call(&run, false)).await;
    }
    assert_eq!(run.terminal_reason(), Some(TerminalReason::IdleCircuitOpen));
    upstream.calls() - others
}

#[tokio::test(start_paused = true)]
async fn what_is_not_silent_starts_the_count_anew() {
    for which in 0..3 {
        for before in [
            healthy(),
            Script::answer(200, "{}"),
            failure(500),
            failure(400),
            Script::before_head().fail("reset"),
            Script::sse().data(chat("a")).fail("reset"),
            // Content was heard, whatever came of it.
            Script::sse().data(chat("a")).never(),
        ] {
            let made = silent_ones_after(which, before.clone()).await;
            assert_eq!(made, 5, "{which} {before:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn another_run_has_a_count_of_its_own() {
    let upstream = Upstream::script(Script::before_head().never());
    let [service, ..] = services(&breaker(IdleBreaker::End), &upstream);
    let runs = [Run::open(), Run::open()];
    for _ in 0..4 {
        for run in &runs {
            asks(&service, &upstream, call(run, false)).await;
        }
    }

    asks(&service, &upstream, call(&runs[0], false)).await;

    let idle = Some(TerminalReason::IdleCircuitOpen);
    assert_eq!(runs.map(|run| run.terminal_reason()), [idle, None]);
}

#[tokio::test(start_paused = true)]
async fn it_is_off_by_default() {
    for which in 0..3 {
        let upstream = Upstream::script(Script::before_head().never());
        let budget = no_delay().per_error_key(None).per_run(None);
        let service = services(&budget, &upstream)[which].clone();
        let run = Run::open();
        for _ in 0..10 {
            asks(&service, &upstream, call(&run, true)).await;
        }
        assert_eq!(run.terminal_reason(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_breaker_of_the_outer_layer_alone_counts_as_well() {
    let upstream = Upstream::script(Script::before_head().never());
    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]).budget(breaker(IdleBreaker::End)))
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(StepTimeoutLayer::new(secs(10)))
        .service(upstream.clone());
    let run = Run::open();
    asks(&service, &upstream, call(&run, true)).await;
    assert_eq!(upstream.calls(), 3);

    asks(&service, &upstream, call(&run, true)).await;

    // Looked at when the candidate is given up, which was repeated.
    assert_eq!(upstream.calls(), 6);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::IdleCircuitOpen));
}

#[tokio::test(start_paused = true)]
async fn or_silent_candidates_are_no_longer_repeated_and_the_run_goes_on() {
    let upstream = Upstream::script(healthy());
    upstream.play("a", Script::before_head().never());
    upstream.play("b", Script::before_head().never());
    let [.., service] = services(&breaker(IdleBreaker::FailOver), &upstream);
    let run = Run::open();
    let ask = || asks(&service, &upstream, call(&run, true));

    assert_eq!(ask().await, ["a", "b", "b"]);
    // The fifth in a row, and every one after it.
    assert_eq!(ask().await, ["a", "b"]);
    assert_eq!(ask().await, ["a", "b"]);
    assert_eq!(run.terminal_reason(), None);

    upstream.play("b", Script::sse().data(chat("b")).data(DONE));
    assert_eq!(ask().await, ["a", "b"]);
    // It was served: repeats are made again.
    upstream.play("b", Script::before_head().never());
    assert_eq!(ask().await, ["a", "b", "b"]);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn where_nobody_else_is_left_the_silence_is_handed_up() {
    let upstream = Upstream::script(Script::before_head().never());
    let budget = no_delay().idle_breaker(1, IdleBreaker::FailOver);
    let [service, ..] = services(&budget, &upstream);
    let heard = LogCapture::start();
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));

    let outcome = service.ask(request).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    let silent = Some(TerminalReason::StepTimeout);
    assert_eq!(outcome.reason, silent);
    assert_eq!(call.terminal_reason(), silent);
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(upstream.calls(), 1);
    assert_eq!(heard.events("no further attempt")[0]["denied"], "idle");
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_in_the_silence_is_not_counted() {
    let upstream = Upstream::script(Script::before_head().never());
    let [service, ..] = services(&breaker(IdleBreaker::End), &upstream);
    let run = Run::open();
    for _ in 0..6 {
        let asked = asks(&service, &upstream, call(&run, false));
        assert!(tokio::time::timeout(secs(5), asked).await.is_err());
    }
    for _ in 0..4 {
        asks(&service, &upstream, call(&run, false)).await;
    }
    assert_eq!(run.terminal_reason(), None);

    asks(&service, &upstream, call(&run, false)).await;

    assert_eq!(run.terminal_reason(), Some(TerminalReason::IdleCircuitOpen));
}
