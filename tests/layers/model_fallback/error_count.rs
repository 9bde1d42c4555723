//! Failures of calls that fall back, counted over the calls of one run.

use tower::{Layer, ServiceExt};
use tower_agent::{
    Candidate, ModelFallbackLayer, Run, TerminalReason, attempt::Count, llm::failure::FailureClass,
};

use super::failed;
use crate::support::{
    PRELUDE, ReadExt, Script, Stack, Upstream, chat, failure, healthy, no_delay, prompt,
};

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
            .layer(Upstream::script(broken));
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
async fn an_attempt_that_is_left_for_another_credential_is_what_it_was_judged() {
    let upstream = Upstream::scripts([Script::error_code(429, "insufficient_quota"), healthy()]);
    let candidates = ["a", "b"].map(|name| Candidate::new(name).credential(name));
    let stack = Stack::default().fallback(candidates).build(&upstream);

    stack.ask(prompt("a")).await.whole();

    let completed = Some(TerminalReason::Completed);
    let judged = [failed(FailureClass::Quota), completed];
    assert_eq!(upstream.reasons(), judged);
}
