//! No to another try, on a call that lives: its caller gets the last answer.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    HardCeilingLayer, RetryBudget, RetryBudgetLayer, Run, Scope, TerminalReason,
    attempt::NextAttempt, llm::failure::FailureClass,
};

use crate::support::{
    ERROR, Outcome, ReadExt, Script, Stack, Upstream, attach, failure, healthy, no_delay, prompt,
    secs,
};

/// covers: F3
#[tokio::test(start_paused = true)]
async fn what_would_fail_again_is_sent_once() {
    use FailureClass as Class;
    for (script, status, class) in [
        (failure(400), 400, Class::Caller),
        (failure(401), 401, Class::Auth),
        (failure(402), 402, Class::Quota),
        (failure(403), 403, Class::Auth),
        (failure(404), 404, Class::Caller),
        (failure(413), 413, Class::TooLarge),
        (failure(422), 422, Class::Caller),
        (
            Script::error_code(429, "insufficient_quota"),
            429,
            Class::Quota,
        ),
        (
            Script::error_code(400, "context_length_exceeded"),
            400,
            Class::ContextOverflow,
        ),
        (
            Script::error_code(400, "content_filter"),
            400,
            Class::ContentFilter,
        ),
        (
            Script::error_code(404, "model_not_found"),
            404,
            Class::ModelGone,
        ),
        (
            Script::error_code(413, "rate_limit_exceeded"),
            413,
            Class::RequestLimit,
        ),
    ] {
        let upstream = Upstream::scripts([script, healthy()]);
        let stack = Stack::default().budget(no_delay()).build(&upstream);
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));

        let outcome = stack.ask(request).await;

        assert_eq!(outcome.status, status);
        assert_eq!(outcome.headers["x-attempt"], "1");
        assert_eq!(outcome.tries, [(None, class)]);
        let failure = outcome.failure.as_ref().unwrap();
        assert_eq!((failure.class, &*failure.message), (class, "no"));
        outcome.whole();
        assert_eq!(upstream.calls(), 1, "{class}");
        assert_eq!(call.terminal_reason(), Some(TerminalReason::Failed(class)));
        assert_eq!(run.in_flight(), 0);
    }
}

/// covers: F3
#[tokio::test(start_paused = true)]
async fn what_may_pass_is_tried_again() {
    for script in [
        failure(408),
        failure(409),
        failure(424),
        failure(429),
        failure(500),
        failure(502),
        failure(503),
        failure(529),
        Script::error_code(400, "rate_limit_exceeded"),
        Script::before_head().fail("reset"),
    ] {
        let upstream = Upstream::scripts([script, healthy()]);
        let stack = Stack::default().budget(no_delay()).build(&upstream);

        let outcome = stack.ask(prompt("m")).await;

        assert_eq!(outcome.status, 200);
        assert_eq!(upstream.calls(), 2);
    }
}

/// covers: G2
#[tokio::test(start_paused = true)]
async fn a_wait_for_which_the_time_does_not_last_is_not_begun() {
    for (asked, waited) in [("9.9", true), ("9.901", false), ("30", false)] {
        for scope in [Scope::Found, Scope::Run] {
            let limited = failure(429).header("retry-after", asked);
            let upstream = Upstream::scripts([limited, healthy()]);
            let service = ServiceBuilder::new()
                .layer(HardCeilingLayer::new(secs(10)).scope(scope))
                .layer(RetryBudgetLayer::new(no_delay()))
                .service(upstream.clone());
            let start = Instant::now();

            let request = Run::open().attach(prompt("m"));
            let answer = service.oneshot(request).await.unwrap();

            let status = if waited { 200 } else { 429 };
            assert_eq!(answer.status().as_u16(), status, "{asked}");
            assert_eq!(upstream.calls(), 1 + usize::from(waited));
            if !waited {
                assert_eq!(start.elapsed(), secs(0));
                assert_eq!(answer.headers()["retry-after"], asked);
                assert_eq!(answer.into_body().read().await.whole(), ERROR);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_least_time_of_an_attempt_is_a_setting() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default()
        .ceiling(10)
        .budget(no_delay().min_attempt(secs(11)));

    let outcome = stack.build(&upstream).ask(prompt("m")).await;

    assert_eq!(outcome.status, 500);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_step_window_is_no_time_that_is_left() {
    let upstream = Upstream::scripts([failure(429).header("retry-after", "30"), healthy()]);
    let stack = Stack::default().step(10).budget(no_delay());
    let start = Instant::now();

    let outcome = stack.build(&upstream).ask(prompt("m")).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(upstream.times(start), [secs(0), secs(30)]);
}

#[tokio::test(start_paused = true)]
async fn a_candidate_gets_as_many_attempts_as_are_set() {
    for most in [1, 2, 5] {
        let upstream = Upstream::script(failure(500));
        let budget = no_delay().max_attempts_per_candidate(most);
        let stack = Stack::default().budget(budget).build(&upstream);

        let outcome = stack.ask(prompt("m")).await;

        assert_eq!(outcome.status, 500);
        assert_eq!(upstream.calls(), most as usize);
        assert_eq!(outcome.tries.len(), most as usize);
    }
}

#[tokio::test(start_paused = true)]
async fn an_empty_bucket_hands_up_the_answer() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().budget(no_delay().shared(0.0, 0));
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let outcome = stack.build(&upstream).ask(request).await;

    assert_eq!(outcome.status, 500);
    assert_eq!(outcome.whole(), ERROR);
    assert_eq!(upstream.calls(), 1);
    let failed = TerminalReason::Failed(FailureClass::Server);
    assert_eq!(call.terminal_reason(), Some(failed));
    assert_eq!(run.terminal_reason(), None);
}

/// How many upstream calls it takes for `budgets` to make one call each.
async fn calls_of<const N: usize>(budgets: [RetryBudget; N]) -> [usize; N] {
    let mut calls = [0; N];
    for (budget, calls) in budgets.into_iter().zip(&mut calls) {
        let upstream = Upstream::script(failure(500));
        let service = RetryBudgetLayer::new(budget).layer(upstream.clone());
        service.oneshot(prompt("m")).await.unwrap();
        *calls = upstream.calls();
    }
    calls
}

#[tokio::test(start_paused = true)]
async fn layers_with_clones_of_one_budget_share_its_bucket() {
    let one = no_delay().shared(0.5, 0);
    let clones = [one.clone(), one.clone(), one.clone(), one];
    let others = [(); 4].map(|()| no_delay().shared(0.5, 0));

    assert_eq!(calls_of(clones).await, [1, 2, 1, 2]);
    assert_eq!(calls_of(others).await, [1, 1, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn the_floor_of_the_bucket_fills_with_time() {
    let one = no_delay().shared(0.0, 1);

    assert_eq!(calls_of([one.clone(), one.clone()]).await, [2, 1]);
    tokio::time::sleep(secs(1)).await;
    assert_eq!(calls_of([one.clone(), one]).await, [2, 1]);
}

#[tokio::test(start_paused = true)]
async fn without_a_shared_budget_each_call_repeats() {
    let one = no_delay().unshared();

    assert_eq!(calls_of([(); 40].map(|()| one.clone())).await, [2; 40]);
}

/// covers: H5
#[tokio::test(start_paused = true)]
async fn the_hook_may_refuse_and_sees_what_is_about_to_start() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let budget =
        no_delay()
            .max_attempts_per_candidate(5)
            .before_attempt(move |next: &NextAttempt<'_>| {
                let mut seen = noted.lock().unwrap();
                let candidate = next.candidate.map(ToOwned::to_owned);
                seen.push((next.run.clone(), next.attempt, candidate, next.after));
                next.attempt < 3
            });
    let upstream = Upstream::scripts([failure(500), failure(429), healthy()]);
    let stack = Stack::default().budget(budget.shared(1.0, 0));
    let run = Run::open();

    let outcome = stack.build(&upstream).ask(run.attach(prompt("m"))).await;

    assert_eq!(outcome.status, 429);
    assert_eq!(outcome.whole(), ERROR);
    assert_eq!(upstream.calls(), 2);
    let seen = seen.lock().unwrap();
    let said: Vec<_> = seen
        .iter()
        .map(|(_, number, candidate, class)| (*number, candidate.clone(), *class))
        .collect();
    let expected = [
        (2, None, FailureClass::Server),
        (3, None, FailureClass::RateLimit),
    ];
    assert_eq!(said, expected);
    assert!(seen.iter().all(|(call, ..)| call.id() == run.id()));
}

#[tokio::test(start_paused = true)]
async fn the_hook_is_asked_last_but_for_the_budgets() {
    let never = |_: &NextAttempt<'_>| panic!("nobody was to ask");
    let refused = [
        (failure(400), 2),
        (failure(429).header("retry-after", "3600"), 2),
        (failure(500), 1),
    ];
    for (script, most) in refused {
        let budget = no_delay()
            .max_attempts_per_candidate(most)
            .before_attempt(never);
        let upstream = Upstream::script(script);
        let service = RetryBudgetLayer::new(budget).layer(upstream.clone());

        service.oneshot(prompt("m")).await.unwrap();

        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusing_hook_leaves_the_bucket_as_it_was() {
    let budget = no_delay().shared(0.5, 0);
    let refusing = budget.clone().before_attempt(|_| false);

    // Two deposits make a repeat, and the refusal took none.
    assert_eq!(
        calls_of([refusing.clone(), refusing, budget]).await,
        [1, 1, 2]
    );
}

#[tokio::test(start_paused = true)]
async fn the_last_attempts_own_ceiling_is_the_calls_reason() {
    let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
    let stack = Stack::default().budget(no_delay()).attempt_ceiling(10);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let outcome = stack.build(&upstream).ask(request).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(call.terminal_reason(), Some(TerminalReason::HardCeiling));
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(upstream.calls(), 1);
    assert_eq!(outcome.at, secs(10));
    assert_eq!(run.in_flight(), 0);
}
