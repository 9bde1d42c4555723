//! Other tasks, other wakers, and panics.

use futures_util::{StreamExt, stream::FuturesUnordered};
use http::Request;
use http_body_util::Full;
use std::{sync::Arc, sync::atomic::AtomicUsize, sync::atomic::Ordering};
use tokio::{task::JoinSet, task::yield_now, time::Instant};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{HardCeilingLayer, RetryBudgetLayer, Run, TerminalReason};

use crate::support::{
    Outcome, PRELUDE, ReadExt, Script, Stack, Upstream, attach, failure, healthy, healthy_text,
    later, no_delay, poll_once, prompt, reason_of, secs,
};

#[tokio::test(start_paused = true)]
async fn a_wait_within_a_combinator_ends_in_time() {
    let limited = failure(429).header("retry-after", "5");
    let never = Script::before_head().never();
    let upstream = Upstream::scripts([limited, never]);
    let retry = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(30)))
        .service(service_fn(move |request: Request<Full<bytes::Bytes>>| {
            let calls = FuturesUnordered::from_iter([retry.clone().oneshot(request)]);
            async move { calls.into_future().await.0.unwrap() }
        }));
    let start = Instant::now();

    let error = service.oneshot(prompt("m")).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::HardCeiling));
    assert_eq!(upstream.times(start), [secs(0), secs(5)]);
    assert_eq!(start.elapsed(), secs(30));
}

/// covers: T25
#[tokio::test(start_paused = true)]
async fn a_call_that_was_polled_elsewhere_wakes_its_new_task() {
    for ends in [false, true] {
        let limited = failure(429).header("retry-after", "5");
        let upstream = Upstream::scripts([limited, healthy()]);
        let mut service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
        let run = Run::open();
        let mut call = Box::pin(service.call(run.attach(prompt("m"))));
        let start = Instant::now();

        // The first waker is nobody's.
        assert!(poll_once(&mut call).is_pending());
        let moved = tokio::spawn(call);
        if ends {
            let run = run.clone();
            later(2, move || run.end(TerminalReason::Aborted))
                .await
                .unwrap();
        }
        let answered = moved.await.unwrap();

        if ends {
            assert_eq!(
                reason_of(&answered.unwrap_err()),
                Some(TerminalReason::Aborted)
            );
            assert_eq!(start.elapsed(), secs(2));
        } else {
            let text = answered.unwrap().into_body().read().await.whole();
            assert_eq!(text, healthy_text());
            assert_eq!(upstream.times(start), [secs(0), secs(5)]);
        }
        assert_eq!(run.in_flight(), 0);
    }
}

/// covers: G4, T42
#[tokio::test(start_paused = true)]
async fn an_outage_makes_no_storm_however_many_calls_meet_it() {
    let upstream = Upstream::script(Script::before_head().wait(1.0).fail("reset"));
    let budget = no_delay().shared(0.2, 0);
    let service = RetryBudgetLayer::new(budget).layer(upstream.clone());
    let mut calls = JoinSet::new();

    for _ in 0..50 {
        calls.spawn(service.clone().oneshot(prompt("m")));
    }
    let answers = calls.join_all().await;

    assert!(answers.iter().all(Result::is_err));
    assert_eq!(upstream.calls(), 60, "a fifth of the first attempts");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_upstream_leaves_nothing_behind() {
    for script in [
        Script::before_head().panic(),
        Script::sse().data(PRELUDE).panic(),
        Script::json().status(500).panic(),
    ] {
        let upstream = Upstream::scripts([script, healthy()]);
        let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));

        let joined = tokio::spawn(service.oneshot(request)).await;

        assert!(joined.unwrap_err().is_panic());
        assert_eq!(upstream.calls(), 1);
        assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
        assert_eq!(run.in_flight(), 0);
    }
}

/// covers: T43
#[tokio::test(start_paused = true)]
async fn what_fails_at_once_again_and_again_leaves_others_a_turn() {
    let upstream = Upstream::script(failure(500));
    let budget = no_delay().unshared().max_attempts_per_candidate(10_000);
    let stack = Stack::default().ceiling(5).budget(budget).build(&upstream);
    let turns = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&turns);
    let other = tokio::spawn(async move {
        for _ in 0..10 {
            yield_now().await;
            counted.fetch_add(1, Ordering::SeqCst);
        }
        tokio::time::advance(secs(6)).await;
    });

    let outcome = stack.ask(prompt("m")).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(turns.load(Ordering::SeqCst), 10);
    assert!(upstream.calls() < 10_000, "{}", upstream.calls());
    other.await.unwrap();
}
