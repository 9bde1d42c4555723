//! What a failure counts for, and as whose.

use http::HeaderValue;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, ModelFallbackLayer, NodeKind, RetryBudgetLayer, Run, RunLayer, RunRegistry,
    TerminalReason, retry_budget::Count, upstream::FailureClass,
};

use crate::support::{
    ERROR, PRELUDE, ReadExt, Script, Upstream, chat, failure, healthy, no_delay, prompt,
    prompt_json, run_on,
};

fn failed(class: FailureClass) -> Option<TerminalReason> {
    Some(TerminalReason::Failed(class))
}

#[tokio::test(start_paused = true)]
async fn a_failure_under_a_good_status_is_one_of_the_call_and_counts_on_its_run() {
    let upstream = Upstream::scripts([Script::answer(200, ERROR)]);
    let budget = no_delay().per_error_key(None).per_run(1);
    let service = ServiceBuilder::new()
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(RetryBudgetLayer::new(budget))
        .service(upstream.clone());

    for ended in [None, Some(TerminalReason::RunErrors)] {
        let mut request = prompt_json("m");
        let id = HeaderValue::from_static("r-1");
        request.headers_mut().insert("x-run-id", id);
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.into_body().read().await.whole(), ERROR);

        let call = upstream.requests().pop().unwrap().run().parent().unwrap();
        assert_eq!(call.kind(), NodeKind::Call);
        assert_eq!(call.terminal_reason(), failed(FailureClass::Server));
        assert_eq!(call.run().terminal_reason(), ended);
    }
    assert_eq!(upstream.calls(), 4);
}

#[tokio::test(start_paused = true)]
async fn every_attempt_of_a_run_of_one_call_counts() {
    let upstream = Upstream::scripts([failure(500)]);
    let budget = no_delay().count(Count::Every).per_error_key(1);
    let budget = budget.max_attempts_per_candidate(5);
    let service = RetryBudgetLayer::new(budget).layer(upstream.clone());

    let answer = service.oneshot(prompt("m")).await.unwrap();
    let run = run_on(&answer);
    assert_eq!(answer.into_body().read().await.whole(), ERROR);

    assert_eq!(upstream.calls(), 2);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_spent_does_not_hide_a_run_that_is() {
    let rounds = (0..3).flat_map(|_| [failure(500), healthy()]);
    let upstream = Upstream::scripts(rounds.chain([failure(500)]));
    let budget = no_delay().count(Count::Every).per_error_key(1).per_run(3);
    let service = ModelFallbackLayer::new(["a", "b"].map(Candidate::new))
        .budget(budget)
        .layer(upstream.clone());
    let run = Run::open();

    for status in [200, 200, 200, 500] {
        assert_eq!(run.terminal_reason(), None);
        let request = run.attach(prompt("a"));
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), status);
        answer.into_body().read().await.whole();
    }

    assert_eq!(upstream.models(), ["a", "b", "a", "b", "a", "b", "a"]);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::RunErrors));
}

#[tokio::test(start_paused = true)]
async fn what_fails_after_its_first_content_is_counted_by_who_served_it() {
    let spent = Some(TerminalReason::RetryBudget);
    for (served, ended) in [(["a", "b", "c", "d"], None), (["b"; 4], spent)] {
        let broken = Script::sse().data(PRELUDE).data(chat("a")).fail("reset");
        let candidates = ["a", "b", "c", "d"].map(Candidate::new);
        let service = ModelFallbackLayer::new(candidates)
            .budget(no_delay())
            .layer(Upstream::scripts([broken]));
        let run = Run::open();

        for model in served {
            assert_eq!(run.terminal_reason(), None);
            let request = run.attach(prompt(model));
            let answer = service.clone().oneshot(request).await.unwrap();
            assert_eq!(answer.headers()["x-served-model"], model);
            answer.into_body().read().await.end.unwrap_err();
        }

        assert_eq!(run.terminal_reason(), ended);
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_repeated_is_what_it_was_judged() {
    let upstream = Upstream::scripts([Script::answer(200, ERROR), healthy()]);
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());

    let answer = service.oneshot(prompt("m")).await.unwrap();
    answer.into_body().read().await.whole();

    let completed = Some(TerminalReason::Completed);
    let judged = [failed(FailureClass::Server), completed];
    assert_eq!(upstream.reasons(), judged);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_left_for_another_credential_is_what_it_was_judged() {
    let upstream = Upstream::scripts([Script::error_code(429, "insufficient_quota"), healthy()]);
    let candidates = ["a", "b"].map(|name| Candidate::new(name).credential(name));
    let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());

    let answer = service.oneshot(prompt("a")).await.unwrap();
    answer.into_body().read().await.whole();

    let completed = Some(TerminalReason::Completed);
    let judged = [failed(FailureClass::Quota), completed];
    assert_eq!(upstream.reasons(), judged);
}
