//! A run that is over is not tried again, whoever ended it and whenever.

use std::{
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, timeout};
use tower::{Layer, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_agent::{
    BoxError, HardCeilingLayer, ReplayBody, RetryBudgetLayer, Run, Scope, TerminalReason,
    Terminated, attempt::Jitter,
};

use crate::support::{
    Outcome, PRELUDE, Script, Stack, Upstream, attach, failure, healthy, later, no_delay, prompt,
    reason_of, request, secs,
};

fn reasons() -> [TerminalReason; 5] {
    [
        TerminalReason::Aborted,
        TerminalReason::ClientDisconnect,
        TerminalReason::TurnCap,
        TerminalReason::Shutdown,
        TerminalReason::StepTimeout,
    ]
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_during_a_try_is_not_tried_again() {
    for reason in reasons() {
        for script in [
            Script::before_head().never(),
            Script::sse().data(PRELUDE).never(),
            Script::json().status(500).data("{").never(),
        ] {
            let upstream = Upstream::scripts([script, healthy()]);
            let stack = Stack::default().budget(no_delay()).build(&upstream);
            let run = Run::open();
            let ended = later(0, {
                let (run, reason) = (run.clone(), reason.clone());
                move || run.end(reason)
            });
            let start = Instant::now();

            let request = run.attach(prompt("m"));
            let outcome = stack.ask(request).await;

            assert_eq!(outcome.status, Outcome::NO_ANSWER);
            assert!(ended.await.unwrap());
            assert_eq!(start.elapsed(), Duration::ZERO);
            assert_eq!(outcome.reason, Some(reason.clone()));
            assert_eq!(upstream.calls(), 1);
            assert_eq!(upstream.dropped().reason, Some(reason.clone()));
            assert_eq!(run.in_flight(), 0);
        }
    }
}

/// covers: G1, T31
#[tokio::test(start_paused = true)]
async fn a_run_that_ends_in_the_backoff_is_not_tried_again() {
    for reason in reasons() {
        let upstream = Upstream::scripts([failure(429).header("retry-after", "30"), healthy()]);
        let stack = Stack::default().budget(no_delay()).build(&upstream);
        let run = Run::open();
        let ended = later(10, {
            let (run, reason) = (run.clone(), reason.clone());
            move || run.end(reason)
        });
        let start = Instant::now();

        let request = run.attach(prompt("m"));
        let outcome = stack.ask(request).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert!(ended.await.unwrap());
        assert_eq!(start.elapsed(), secs(10));
        assert_eq!(outcome.reason, Some(reason));
        assert_eq!(upstream.calls(), 1);
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_broke_before_the_backoff_is_the_source_of_the_end() {
    let broken = Script::before_head().fail("reset by peer");
    let upstream = Upstream::script(broken);
    // It waits for a minute at least.
    let budget = no_delay()
        .delays(secs(60), secs(60))
        .jitter(Jitter::Decorrelated);
    let stack = Stack::default().budget(budget).build(&upstream);
    let run = Run::open();
    let ended = later(0, {
        let run = run.clone();
        move || run.end(TerminalReason::Aborted)
    });
    let outcome = stack.ask(run.attach(prompt("m"))).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert!(ended.await.unwrap());
    let ended = outcome.terminated();
    assert_eq!(ended.reason, TerminalReason::Aborted);
    let source = ended.source().unwrap();
    assert_eq!(source.to_string(), "reset by peer");
    assert_eq!(upstream.calls(), 1);
}

/// Ends the run in the poll in which it answers.
fn ends_and_answers(
    answer: fn() -> Result<Response<Full<Bytes>>, BoxError>,
) -> (
    Arc<AtomicUsize>,
    impl tower::Service<
        Request<ReplayBody>,
        Response = Response<Full<Bytes>>,
        Error = BoxError,
        Future: Send,
    > + Clone,
) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let service = service_fn(move |request: Request<ReplayBody>| {
        counted.fetch_add(1, Ordering::SeqCst);
        let run = request.extensions().get::<Run>().unwrap().run();
        async move {
            tokio::time::sleep(secs(1)).await;
            run.end(TerminalReason::TurnCap);
            answer()
        }
    });
    (calls, service)
}

/// covers: T30
#[tokio::test(start_paused = true)]
async fn an_answer_that_looks_like_a_rate_limit_does_not_hide_the_end() {
    let (calls, upstream) = ends_and_answers(|| {
        let answer = Response::builder().status(429).header("retry-after", "0");
        Ok(answer.body(Full::from("slow down")).unwrap())
    });
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream);
    let run = Run::open();

    let request = run.attach(prompt("m"));
    let error = service.oneshot(request).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::TurnCap));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(run.in_flight(), 0);
}

/// covers: T30
#[tokio::test(start_paused = true)]
async fn an_error_that_looks_like_a_rate_limit_is_the_source_of_the_end() {
    let (calls, upstream) =
        ends_and_answers(|| Err(io::Error::other("429 rate_limit_exceeded").into()));
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream);
    let run = Run::open();

    let request = run.attach(prompt("m"));
    let error = service.oneshot(request).await.unwrap_err();

    let ended = Terminated::find(&*error).unwrap();
    assert_eq!(ended.reason, TerminalReason::TurnCap);
    let source = ended.source().unwrap();
    assert_eq!(source.to_string(), "429 rate_limit_exceeded");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_while_the_service_is_not_ready_is_not_tried_again() {
    let upstream = Upstream::scripts([
        Script::before_head().wait(1.0).fail("reset"),
        Script::before_head().never(),
    ]);
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));
    let ended = later(10, {
        let run = run.clone();
        move || run.end(TerminalReason::Aborted)
    });
    let start = Instant::now();

    // The other one takes the permit when the first try fails, and keeps it.
    let first = service.clone().oneshot(request);
    let other = timeout(secs(60), service.oneshot(prompt("m")));
    let other = tokio::spawn(other);
    let error = first.await.unwrap_err();

    assert!(ended.await.unwrap());
    assert_eq!(start.elapsed(), secs(10));
    assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(upstream.times(start), [secs(0), secs(1)]);
    assert_eq!(run.in_flight(), 0);
    assert!(other.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_fires_while_the_service_is_not_ready() {
    let upstream = Upstream::scripts([
        Script::before_head().wait(1.0).fail("reset"),
        Script::before_head().never(),
    ]);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(10)))
        .layer(RetryBudgetLayer::new(no_delay()))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(upstream.clone());
    let start = Instant::now();

    let first = service.clone().oneshot(prompt("m"));
    let other = tokio::spawn(service.oneshot(prompt("m")));
    let error = first.await.unwrap_err();

    assert_eq!(start.elapsed(), secs(10));
    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
    assert_eq!(upstream.calls(), 2);
    let error = other.await.unwrap().unwrap_err();
    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_of_the_run_that_is_set_in_the_backoff_ends_it() {
    let upstream = Upstream::scripts([failure(429).header("retry-after", "30"), healthy()]);
    let waiting = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let never = Upstream::script(Script::before_head().wait(2.0).head("text/plain"));
    let limits = HardCeilingLayer::new(secs(5))
        .scope(Scope::Run)
        .layer(never);
    let run = Run::open();
    let start = Instant::now();

    let waiting = waiting.oneshot(run.attach(prompt("m")));
    let limits = limits.oneshot(run.attach(request()));
    let (waited, limited) = tokio::join!(waiting, limits);

    drop(limited.unwrap());
    assert_eq!(
        reason_of(&waited.unwrap_err()),
        Some(TerminalReason::HardCeiling)
    );
    assert_eq!(start.elapsed(), secs(5));
    assert_eq!(upstream.calls(), 1);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn each_clock_of_the_call_ends_it_during_the_try() {
    for (ceiling, reason) in [
        (HardCeilingLayer::new(secs(10)), TerminalReason::HardCeiling),
        (
            HardCeilingLayer::new(secs(60)).timeout(Some(secs(10))),
            TerminalReason::CallerDeadline,
        ),
    ] {
        let upstream = Upstream::scripts([Script::sse().data(PRELUDE).never(), healthy()]);
        let service = ServiceBuilder::new()
            .layer(ceiling)
            .layer(RetryBudgetLayer::new(no_delay()))
            .service(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));
        let start = Instant::now();

        let error = service.oneshot(request).await.unwrap_err();

        assert_eq!(reason_of(&error), Some(reason.clone()));
        assert_eq!(call.terminal_reason(), Some(reason));
        assert_eq!(start.elapsed(), secs(10));
        assert_eq!(upstream.calls(), 1);
        assert_eq!(run.terminal_reason(), None);
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_over_before_the_call_starts_no_try() {
    let upstream = Upstream::script(healthy());
    let stack = Stack::default().budget(no_delay()).build(&upstream);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));
    run.end(TerminalReason::TurnCap);

    let outcome = stack.ask(request).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::TurnCap));
    assert_eq!(call.terminal_reason(), Some(TerminalReason::TurnCap));
    assert_eq!(upstream.calls(), 0);
    assert_eq!(run.in_flight(), 0);
}

/// covers: F1
#[tokio::test(start_paused = true)]
async fn a_hook_that_ends_the_run_and_refuses_is_answered_as_the_end() {
    let budget = no_delay().before_attempt(|next| {
        next.run.run().end(TerminalReason::TurnCap);
        false
    });
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().budget(budget).build(&upstream);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let outcome = stack.ask(request).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::TurnCap));
    assert_eq!(call.terminal_reason(), Some(TerminalReason::TurnCap));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_is_not_asked_for_a_run_that_is_over() {
    let upstream = Upstream::script(failure(500)).busy(secs(3600));
    let stack = Stack::default().budget(no_delay()).build(&upstream);
    let run = Run::open();
    let request = run.attach(prompt("m"));
    let asked = upstream.clone();
    let ended = later(5, move || {
        run.end(TerminalReason::Aborted);
        asked.readiness_polls()
    });

    let outcome = stack.ask(request).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::Aborted));
    assert_eq!(upstream.readiness_polls(), ended.await.unwrap());
    assert_eq!(upstream.calls(), 1);
}
