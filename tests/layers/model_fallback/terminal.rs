//! A run that is over never falls back.
//!
//! covers: F1

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, timeout};
use tower::{Layer, ServiceBuilder, ServiceExt, limit::ConcurrencyLimitLayer, service_fn};
use tower_agent::{
    BoxError, Candidate, HardCeilingLayer, ModelFallbackLayer, ReplayBody, RetryBudget, Run, Scope,
    StepTimeoutLayer, TerminalReason, Terminated, llm::failure::FailureClass,
};

use super::{at, models};
use crate::support::{
    Outcome, PRELUDE, Place, ReadExt, Script, Stack, Upstream, attach, failure, healthy,
    healthy_text, later, no_delay, prompt, reason_of, secs,
};

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_during_an_attempt_asks_no_other() {
    for reason in [
        TerminalReason::Aborted,
        TerminalReason::ClientDisconnect,
        TerminalReason::TurnCap,
        TerminalReason::Superseded,
    ] {
        for script in [
            Script::before_head().never(),
            Script::sse().data(PRELUDE).never(),
            Script::json().status(429).data("{").never(),
        ] {
            let upstream = Upstream::scripts([script, healthy()]);
            let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
            let run = Run::open();
            let ended = later(0, {
                let (run, reason) = (run.clone(), reason.clone());
                move || run.end(reason)
            });

            let request = run.attach(prompt("a"));
            let outcome = stack.ask(request).await;

            assert_eq!(outcome.status, Outcome::NO_ANSWER);
            assert!(ended.await.unwrap());
            assert_eq!(outcome.reason, Some(reason.clone()));
            assert_eq!(upstream.models(), ["a"]);
            assert_eq!(upstream.dropped().reason, Some(reason.clone()));
            assert_eq!(run.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_that_looks_like_a_rate_limit_is_the_source_of_the_end() {
    let upstream = service_fn(|request: Request<ReplayBody>| async move {
        let run = request.extensions().get::<Run>().unwrap().run();
        run.end(TerminalReason::Aborted);
        Err::<Response<Full<bytes::Bytes>>, BoxError>("429 rate_limit_exceeded".into())
    });
    let asked = Arc::new(AtomicUsize::new(0));
    let budget = RetryBudget::new().before_attempt({
        let asked = Arc::clone(&asked);
        move |_| asked.fetch_add(1, Ordering::Relaxed) == 0
    });
    let service = models(["a", "b"]).budget(budget).layer(upstream);
    let run = Run::open();

    let request = run.attach(prompt("a"));
    let error = service.oneshot(request).await.unwrap_err();

    assert_eq!(asked.load(Ordering::Relaxed), 0, "no other is thought of");
    let ended = Terminated::find(&*error).unwrap();
    assert_eq!(ended.reason, TerminalReason::Aborted);
    assert_eq!(
        ended.source().unwrap().to_string(),
        "429 rate_limit_exceeded"
    );
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_between_two_candidates_asks_no_other() {
    let run = Run::open();
    let ends = run.clone();
    let budget = RetryBudget::new().before_attempt(move |_| ends.end(TerminalReason::TurnCap));
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().layer(Place::Fallback, models(["a", "b"]).budget(budget));
    let (request, call) = attach(&run, prompt("a"));

    let outcome = stack.build(&upstream).ask(request).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::TurnCap));
    assert_eq!(call.terminal_reason(), Some(TerminalReason::TurnCap));
    assert_eq!(upstream.models(), ["a"]);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_between_two_candidates_leaves_nothing_behind() {
    let upstream = Upstream::scripts([
        Script::before_head().wait(1.0).fail("reset"),
        Script::before_head().never(),
    ]);
    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]))
        .layer(ConcurrencyLimitLayer::new(1))
        .service(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));

    // The other one takes the permit when the first candidate fails.
    let first = timeout(secs(5), service.clone().oneshot(request));
    let other = timeout(secs(9), service.oneshot(prompt("a")));
    let (first, other) = tokio::join!(first, other);

    assert!(first.is_err() && other.is_err());
    assert_eq!(upstream.models(), ["a", "a"]);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves_during_an_attempt_leaves_nothing_behind() {
    for script in [
        Script::before_head().never(),
        Script::sse().data(PRELUDE).never(),
        Script::json().data("{").never(),
    ] {
        let upstream = Upstream::scripts([failure(500), script]);
        let service = models(["a", "b", "c"]).layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("a"));

        assert!(timeout(secs(5), service.oneshot(request)).await.is_err());

        assert_eq!(upstream.models(), ["a", "b"]);
        assert!(upstream.is_dropped());
        assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
        assert_eq!(run.in_flight(), 0);
    }
}

/// covers: T24
#[tokio::test(start_paused = true)]
async fn deadlines_that_coincide_ask_one_candidate_in_each_order() {
    for [outer, inner] in [
        [Scope::Run, Scope::Found],
        [Scope::Found, Scope::Found],
        [Scope::Found, Scope::Run],
    ] {
        for (ceiling, step) in [(Some(secs(10)), None), (None, Some(secs(10)))] {
            let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
            let service = ServiceBuilder::new()
                .layer(HardCeilingLayer::optional(ceiling).scope(outer))
                .layer(StepTimeoutLayer::optional(step).scope(outer))
                // Alone, the candidate has no share that would end it before.
                .layer(models(["a"]))
                .layer(HardCeilingLayer::optional(ceiling).scope(inner))
                .layer(StepTimeoutLayer::optional(step).scope(inner))
                .service(upstream.clone());
            let run = Run::open();
            let start = Instant::now();

            let request = run.attach(prompt("a"));
            let error = service.oneshot(request).await.unwrap_err();

            let reason = match ceiling {
                Some(_) => TerminalReason::HardCeiling,
                None => TerminalReason::StepTimeout,
            };
            assert_eq!(reason_of(&error), Some(reason));
            assert_eq!(upstream.calls(), 1);
            assert_eq!(start.elapsed(), secs(10));
            assert_eq!(run.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn step_windows_that_coincide_ask_one_of_two_candidates() {
    for scope in [Scope::Found, Scope::Run] {
        let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
        let stack = Stack::default()
            .layer(Place::Step, StepTimeoutLayer::new(secs(10)).scope(scope))
            .candidates(["a", "b"])
            .attempt_step(10);
        let run = Run::open();

        let request = run.attach(prompt("a"));
        let outcome = stack.build(&upstream).ask(request).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
        assert_eq!(upstream.models(), ["a"]);
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_trusted_upstreams_word_about_our_run_is_the_end() {
    let run = Run::open();
    let ours = run.id().to_string();
    for (trusted, id, order) in [
        (true, &*ours, ["a"].as_slice()),
        (true, "another", &["a", "b"]),
        (false, &*ours, &["a", "b"]),
    ] {
        let upstream = Upstream::scripts([Script::terminated("step_timeout", id), healthy()]);
        let candidates = [Candidate::new("a").trusted(trusted), Candidate::new("b")];
        let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());

        let request = run.attach(prompt("a"));
        let call = request.extensions().get::<Run>().unwrap().clone();
        let answer = service.oneshot(request).await;

        assert_eq!(upstream.models(), order);
        if order.len() == 1 {
            let error = answer.unwrap_err();
            assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
            assert_eq!(call.terminal_reason(), Some(TerminalReason::StepTimeout));
        } else {
            answer.unwrap().into_body().read().await.whole();
        }
        assert_eq!(run.terminal_reason(), None, "it has other calls");
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_trusted_upstream_is_told_our_run() {
    let upstream = Upstream::script(failure(500));
    let candidates = [Candidate::new("a"), Candidate::new("b").trusted(true)];
    let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());
    let run = Run::open();

    let request = run.attach(prompt("a"));
    service.oneshot(request).await.unwrap();

    let told = upstream.header("x-run-id");
    assert_eq!(told, [None, Some(run.id().to_string())]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_that_is_not_ours_moves_on() {
    let foreign = Script::before_head().fail_with(|| {
        let other = Run::open();
        other.end(TerminalReason::StepTimeout);
        other.terminated().unwrap().into()
    });
    let upstream = Upstream::scripts([foreign, healthy()]);
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);

    let outcome = stack.ask(prompt("a")).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.models(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_over_before_the_call_asks_nobody() {
    let upstream = Upstream::script(healthy());
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
    let run = Run::open();
    let request = run.attach(prompt("a"));
    run.end(TerminalReason::Shutdown);

    let outcome = stack.ask(request).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::Shutdown));
    assert_eq!(upstream.calls(), 0);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_callers_run_id_reaches_nobody_who_is_not_trusted() {
    let upstream = Upstream::script(failure(500));
    let candidates = [Candidate::new("a"), at("b", "http://b.test/v1")];
    let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());
    let mut request = prompt("a");
    let id = HeaderValue::from_static("callers");
    request.headers_mut().insert("x-run-id", id);

    service.oneshot(request).await.unwrap();

    assert_eq!(upstream.models(), ["a", "b"]);
    assert_eq!(upstream.header("x-run-id"), [None, None]);
}

/// Fallbacks from `a` to `b`, with repeats of each.
fn fallbacks(trusted: bool) -> Stack {
    let candidates = ["a", "b"].map(|name| Candidate::new(name).trusted(trusted));
    let fallback = ModelFallbackLayer::new(candidates);
    Stack::default()
        .layer(Place::Fallback, fallback)
        .budget(no_delay())
}

#[tokio::test(start_paused = true)]
async fn the_word_of_a_trusted_upstream_is_the_end_of_the_call() {
    for (name, known) in [
        ("turn_cap_reached", Some(TerminalReason::TurnCap)),
        ("out_of_coffee", None),
    ] {
        let run = Run::open();
        let (request, call) = attach(&run, prompt("a"));
        let said = Script::terminated(name, &run.id().to_string()).status(422);
        let upstream = Upstream::scripts([said, healthy()]);

        let outcome = fallbacks(true).build(&upstream).ask(request).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        let reason = outcome.reason.unwrap();
        assert_eq!(reason.as_str(), name);
        assert_eq!(known.is_none(), matches!(reason, TerminalReason::Custom(_)));
        assert_eq!(known.unwrap_or(reason.clone()), reason);
        assert_eq!(call.terminal_reason(), Some(reason));
        assert_eq!(upstream.models(), ["a"]);
        assert_eq!(run.terminal_reason(), None, "it has other calls");
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_word_of_others_ends_nothing() {
    let run = Run::open();
    let caller = TerminalReason::Failed(FailureClass::Caller);
    for (name, status, asked, reason) in [
        // Judged by its status where the name says nothing.
        (
            "out_of_coffee",
            504,
            ["a", "a"].as_slice(),
            TerminalReason::Completed,
        ),
        ("out_of_coffee", 422, &["a"], caller.clone()),
        // A limit would stop the same work again, but it is none of ours.
        ("turn_cap_reached", 422, &["a"], caller),
    ] {
        let said = Script::terminated(name, &run.id().to_string()).status(status);
        let upstream = Upstream::scripts([said, healthy()]);
        let (request, call) = attach(&run, prompt("a"));

        fallbacks(false).build(&upstream).ask(request).await.whole();

        assert_eq!(upstream.models(), asked);
        assert_eq!(call.terminal_reason(), Some(reason));
        assert_eq!(run.terminal_reason(), None);
    }
}
