//! What wins when ends, or a failure and an end, come in one instant.

use http_body::Body;
use tokio::time::{Instant, timeout};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    ClientDisconnectLayer, HardCeilingLayer, RetryBudgetLayer, Run, Scope, StepTimeoutLayer,
    TerminalReason,
};

use crate::support::{
    DONE, Outcome, PRELUDE, Place, ReadExt, Script, Stack, Upstream, attach, chat, failure,
    healthy, healthy_text, no_delay, prompt, reason_of, request_of, secs,
};

/// covers: T24
#[tokio::test(start_paused = true)]
async fn ceilings_that_coincide_on_run_call_and_attempt_start_one_call_in_each_order() {
    for [outer, middle, inner] in [
        [Scope::Run, Scope::Found, Scope::Found],
        [Scope::Found, Scope::Run, Scope::Found],
        [Scope::Found, Scope::Found, Scope::Run],
    ] {
        let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
        let service = ServiceBuilder::new()
            .layer(HardCeilingLayer::new(secs(10)).scope(outer))
            .layer(HardCeilingLayer::new(secs(10)).scope(middle))
            .layer(RetryBudgetLayer::new(no_delay()))
            .layer(HardCeilingLayer::new(secs(10)).scope(inner))
            .service(upstream.clone());
        let run = Run::open();
        let start = Instant::now();

        let request = run.attach(prompt("m"));
        let error = service.oneshot(request).await.unwrap_err();

        assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
        assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
        assert_eq!(upstream.calls(), 1);
        assert_eq!(start.elapsed(), secs(10));
        assert_eq!(run.in_flight(), 0);
    }
}

/// covers: T24
#[tokio::test(start_paused = true)]
async fn step_windows_that_coincide_on_run_call_and_attempt_start_one_call_in_each_order() {
    for [outer, inner] in [
        [Scope::Run, Scope::Found],
        [Scope::Found, Scope::Found],
        [Scope::Found, Scope::Run],
    ] {
        for script in [
            Script::before_head().never(),
            Script::sse().data(PRELUDE).never(),
        ] {
            let upstream = Upstream::scripts([script, healthy()]);
            let service = ServiceBuilder::new()
                .layer(StepTimeoutLayer::new(secs(10)).scope(outer))
                .layer(RetryBudgetLayer::new(no_delay()))
                .layer(StepTimeoutLayer::new(secs(10)).scope(inner))
                .service(upstream.clone());
            let run = Run::open();
            let (request, call) = attach(&run, prompt("m"));
            let start = Instant::now();

            let error = service.oneshot(request).await.unwrap_err();

            assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
            assert_eq!(call.terminal_reason(), Some(TerminalReason::StepTimeout));
            assert_eq!(upstream.calls(), 1);
            assert_eq!(start.elapsed(), secs(10));
            assert_eq!(run.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_of_the_call_beats_the_window_of_the_attempt_in_the_same_instant() {
    let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
    let stack = Stack::default()
        .ceiling(10)
        .budget(no_delay())
        .attempt_step(10);

    let outcome = stack.build(&upstream).ask(prompt("m")).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(upstream.calls(), 1);
}

/// covers: F1
#[tokio::test(start_paused = true)]
async fn a_ceiling_of_the_instant_of_a_failure_wins() {
    let limited = Script::before_head().wait(10.0).status(429);
    for script in [
        Script::before_head().wait(10.0).fail("reset"),
        Script::sse().data(PRELUDE).wait(10.0).fail("reset"),
        Script::json().data("{").wait(10.0).fail("reset"),
        limited.head("application/json").data("{}"),
    ] {
        for scope in [Scope::Found, Scope::Run] {
            let upstream = Upstream::scripts([script.clone(), healthy()]);
            let stack = Stack::default()
                .layer(Place::Ceiling, HardCeilingLayer::new(secs(10)).scope(scope))
                .budget(no_delay());
            let run = Run::open();
            let (request, call) = attach(&run, prompt("m"));

            let outcome = stack.build(&upstream).ask(request).await;

            assert_eq!(outcome.status, Outcome::NO_ANSWER);
            assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
            assert_eq!(call.terminal_reason(), Some(TerminalReason::HardCeiling));
            assert_eq!(upstream.calls(), 1);
            assert_eq!(outcome.at, secs(10));
            assert_eq!(run.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_window_of_the_instant_of_a_failure_wins() {
    for script in [
        Script::before_head().wait(10.0).fail("reset"),
        Script::sse().data(PRELUDE).wait(10.0).fail("reset"),
    ] {
        for scope in [Scope::Found, Scope::Run] {
            let upstream = Upstream::scripts([script.clone(), healthy()]);
            let stack = Stack::default()
                .layer(Place::Step, StepTimeoutLayer::new(secs(10)).scope(scope))
                .budget(no_delay());
            let run = Run::open();
            let (request, call) = attach(&run, prompt("m"));

            let outcome = stack.build(&upstream).ask(request).await;

            assert_eq!(outcome.status, Outcome::NO_ANSWER);
            assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
            assert_eq!(call.terminal_reason(), Some(TerminalReason::StepTimeout));
            assert_eq!(upstream.calls(), 1);
            assert_eq!(run.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_there_beats_the_ceiling_of_its_instant() {
    let late = Script::before_head().wait(10.0).head("text/event-stream");
    let late = late.data(PRELUDE).data(chat("a")).data(DONE);
    let upstream = Upstream::script(late.knows_its_end());
    let stack = Stack::default().ceiling(10).budget(no_delay());

    let outcome = stack.build(&upstream).ask(prompt("m")).await;

    assert_eq!(outcome.whole(), healthy_text());
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_is_told_as_such_to_what_is_dropped() {
    for script in [
        Script::before_head().never(),
        Script::sse().data(PRELUDE).never(),
        failure(429).header("retry-after", "30"),
    ] {
        let upstream = Upstream::scripts([script, healthy()]);
        let service = ServiceBuilder::new()
            .layer(ClientDisconnectLayer::new())
            .layer(RetryBudgetLayer::new(no_delay()))
            .service(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));

        assert!(timeout(secs(5), service.oneshot(request)).await.is_err());

        let gone = Some(TerminalReason::ClientDisconnect);
        assert_eq!(call.terminal_reason(), gone);
        for dropped in upstream.drops() {
            assert_eq!(dropped.reason, gone);
        }
        assert_eq!(upstream.calls(), 1);
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_held_passes_a_run_that_is_over_whoever_settles_it() {
    for script in [
        Script::sse().data(PRELUDE).data(chat("a")).never(),
        healthy().knows_its_end(),
        Script::json().data("{}").knows_its_end(),
    ] {
        let upstream = Upstream::script(script);
        let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
        let run = Run::open();
        let node = request_of(&run);
        let mut request = prompt("m");
        *request.extensions_mut() = node.extensions().clone();
        let answer = service.oneshot(request).await.unwrap();

        run.end(TerminalReason::Aborted);
        let read = answer.into_body().read().await;

        assert_eq!(read.text, "");
        assert_eq!(read.reason(), Some(TerminalReason::Aborted));
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_has_ended_stays_so_when_the_run_ends() {
    let upstream = Upstream::script(healthy());
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));
    let mut body = service.oneshot(request).await.unwrap().into_body();
    while body.next().await.is_some() {}

    // Its reader may keep the body for a while.
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.in_flight(), 0);
    run.end(TerminalReason::Aborted);
    assert!(body.is_end_stream());
    assert!(body.next().await.is_none());
    drop(body);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
}

#[tokio::test(start_paused = true)]
async fn an_attempts_window_during_the_answer_of_a_failure_is_no_more_than_that() {
    let stalled = Script::json().status(500).data("{").never();
    let upstream = Upstream::scripts([stalled, healthy()]);
    let stack = Stack::default()
        .budget(no_delay())
        .layer(Place::AttemptStep, StepTimeoutLayer::new(secs(1) / 2));
    let start = Instant::now();

    let outcome = stack.build(&upstream).ask(prompt("m")).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.times(start), [secs(0), secs(1) / 2]);
}
