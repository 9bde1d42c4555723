//! Layers in layers: they do not multiply.
//!
//! covers: G5

use http::Request;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    Candidate, HardCeilingLayer, ModelFallbackLayer, ReplayBody, RetryBudget, RetryBudgetLayer,
    Run, TerminalReason,
    attempt::{Count, FailedAttempts},
    llm::failure::FailureClass,
};

use crate::support::{
    ERROR, Outcome, Place, ReadExt, Script, Stack, Upstream, attach, failure, healthy,
    healthy_text, no_delay, prompt, secs,
};

/// Repeats around repeats.
fn nested(outer: RetryBudget, inner: RetryBudget) -> Stack {
    let outer = RetryBudgetLayer::new(outer);
    Stack::default()
        .layer(Place::Outermost, outer)
        .budget(inner)
}

fn numbers<const N: usize>(numbers: [u32; N]) -> Vec<Option<String>> {
    numbers.map(|number| Some(number.to_string())).into()
}

/// covers: T41
#[tokio::test(start_paused = true)]
async fn nested_layers_make_no_more_tries_than_one() {
    let budget = no_delay();
    let upstream = Upstream::script(failure(500));
    let service = nested(budget.clone(), budget).build(&upstream);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let answer = service.oneshot(request).await.unwrap();

    assert_eq!(upstream.header("x-attempt"), numbers([1, 2]));
    assert_eq!(answer.headers()["x-attempt"], "2");
    assert_eq!(
        answer
            .extensions()
            .get::<FailedAttempts>()
            .unwrap()
            .all()
            .len(),
        2
    );
    assert_eq!(answer.into_body().read().await.whole(), ERROR);
    let failed = TerminalReason::Failed(FailureClass::Server);
    assert_eq!(call.terminal_reason(), Some(failed));
    assert_eq!(run.in_flight(), 0);
}

/// The inner service makes a call in a run of its own.
#[tokio::test(start_paused = true)]
async fn each_attempt_of_another_call_is_listed_once() {
    for attempts in [1, 2] {
        let upstream = Upstream::script(Script::before_head().fail("reset"));
        let inner = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
        let own_call = service_fn(move |request: Request<ReplayBody>| {
            inner.clone().oneshot(Request::new(request.into_body()))
        });
        let budget = no_delay().max_attempts_per_candidate(attempts);
        let service = RetryBudgetLayer::new(budget).layer(own_call);

        let error = service.oneshot(prompt("m")).await.err().unwrap();

        assert_eq!(upstream.calls(), 2 * attempts as usize);
        assert_eq!(
            FailedAttempts::find(&*error).unwrap().all().len(),
            upstream.calls()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_bucket_bounds_nested_layers_as_it_does_one() {
    let budget = no_delay().max_attempts_per_candidate(5).shared(0.0, 3);
    let upstream = Upstream::script(failure(500));
    let service = nested(budget.clone(), budget).build(&upstream);

    service.oneshot(prompt("m")).await.unwrap();

    assert_eq!(upstream.calls(), 4, "one and three repeats, not 25");
}

/// covers: T41
#[tokio::test(start_paused = true)]
async fn nested_layers_pay_in_once_a_call() {
    for (calls, expected) in [(1, 1), (2, 3), (3, 4), (4, 6)] {
        let budget = no_delay().max_attempts_per_candidate(5).shared(0.5, 0);
        let upstream = Upstream::script(failure(500));
        let service = nested(budget.clone(), budget).build(&upstream);

        for _ in 0..calls {
            service.clone().oneshot(prompt("m")).await.unwrap();
        }

        assert_eq!(upstream.calls(), expected, "half of {calls} repeated");
    }
}

#[tokio::test(start_paused = true)]
async fn nested_layers_of_one_candidate_pay_in_once_a_call() {
    let budget = no_delay().shared(0.5, 0);
    let upstream = Upstream::script(failure(500));
    let service = ServiceBuilder::new()
        .layer(ModelFallbackLayer::new(["a", "b"].map(Candidate::new)).budget(budget.clone()))
        .service(nested(budget.clone(), budget).build(&upstream));

    for _ in 0..2 {
        service.clone().oneshot(prompt("a")).await.unwrap();
    }

    // Each candidate was paid for twice, and repeated once.
    assert_eq!(upstream.models(), ["a", "b", "a", "a", "b", "b"]);
}

#[tokio::test(start_paused = true)]
async fn nested_layers_of_two_budgets_pay_into_both() {
    let (outer, inner) = (no_delay().shared(0.0, 0), no_delay().shared(0.5, 0));
    for (outer, inner) in [(outer.clone(), inner.clone()), (inner, outer)] {
        let upstream = Upstream::script(failure(500));
        let service = nested(outer, inner).build(&upstream);

        for _ in 0..2 {
            service.clone().oneshot(prompt("m")).await.unwrap();
        }

        assert_eq!(upstream.calls(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn repeats_around_fallbacks_around_repeats_pay_in_once_a_candidate() {
    let budget = no_delay().shared(0.5, 1).max_attempts_per_candidate(5);
    let upstream = Upstream::script(failure(500));
    let service = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(budget.clone()))
        .layer(ModelFallbackLayer::new(["a", "b"].map(Candidate::new)))
        .layer(RetryBudgetLayer::new(
            budget.clone().max_attempts_per_candidate(1),
        ))
        .service(upstream.clone());

    service.oneshot(prompt("a")).await.unwrap();

    assert_eq!(
        upstream.models(),
        ["a", "b", "a", "b"],
        "the floor pays for one"
    );
    budget.withdraw(Some("a")).expect("the floor").spend();
    assert!(
        budget.withdraw(Some("a")).is_none(),
        "half a repeat was paid in"
    );
}

#[tokio::test(start_paused = true)]
async fn the_outer_layer_takes_the_commit_of_the_inner() {
    let upstream = Upstream::scripts([failure(500), failure(500), failure(500), healthy()]);
    let budget = no_delay().max_attempts_per_candidate(4);
    let service = nested(budget.clone(), budget).build(&upstream);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let outcome = service.ask(request).await;

    assert_eq!(outcome.headers["x-attempt"], "4");
    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn nested_layers_count_one_failure_of_the_harness() {
    let budget = no_delay();
    let upstream = Upstream::script(failure(500));
    let run = Run::open();

    for calls in 1..=4 {
        assert_eq!(run.terminal_reason(), None, "{calls}");
        let service = nested(budget.clone(), budget.clone()).build(&upstream);
        let answer = service.oneshot(run.attach(prompt("m"))).await;
        answer.unwrap().into_body().read().await.whole();
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
}

#[tokio::test(start_paused = true)]
async fn nested_layers_count_every_attempt_once() {
    let budget = no_delay()
        .count(Count::Every)
        .max_attempts_per_candidate(3)
        .per_error_key(None)
        .per_run(2);
    let upstream = Upstream::script(failure(500));
    let service = nested(budget.clone(), budget).build(&upstream);
    let run = Run::open();

    let answer = service.oneshot(run.attach(prompt("m"))).await;
    answer.unwrap().into_body().read().await.whole();

    assert_eq!(upstream.calls(), 3);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::RunErrors));
}

#[tokio::test(start_paused = true)]
async fn nested_layers_repeat_a_silent_attempt_once() {
    let budget = no_delay().max_attempts_per_candidate(5);
    let upstream = Upstream::script(Script::before_head().never());
    let stack = nested(budget.clone(), budget).attempt_step(10);
    let service = stack.build(&upstream);

    let outcome = service.ask(prompt("m")).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
    assert_eq!(upstream.calls(), 2);

    // Another candidate, and another call, have a repeat of their own.
    let fallback = ModelFallbackLayer::new(["m", "n"].map(Candidate::new));
    let service = fallback.layer(stack.build(&upstream));
    service.oneshot(prompt("m")).await.unwrap_err();
    assert_eq!(upstream.models()[2..], ["m", "m", "n", "n"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_makes_no_attempt_pays_nothing_in() {
    let budget = no_delay().shared(1.0, 0);
    let upstream = Upstream::script(failure(500));
    // Opened with the first attempt of the fallback, the limit has passed when
    // the service is ready for the second.
    let service = ServiceBuilder::new()
        .layer(ModelFallbackLayer::new(["a", "b"].map(Candidate::new)))
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
