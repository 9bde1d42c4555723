//! Runs that are over: nobody is asked, and everybody is told why.

use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, ModelFallbackLayer, RetryBudgetLayer, Run, TerminalReason, upstream::FailureClass,
};

use crate::support::{
    ReadExt, Script, Upstream, attach, failure, healthy, later, no_delay, prompt, reason_of, secs,
};

#[tokio::test(start_paused = true)]
async fn a_hook_that_ends_the_run_and_refuses_is_answered_as_the_end() {
    let budget = no_delay().before_attempt(|next| {
        next.run.run().end(TerminalReason::TurnCap);
        false
    });
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = RetryBudgetLayer::new(budget).layer(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let error = service.oneshot(request).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::TurnCap));
    assert_eq!(call.terminal_reason(), Some(TerminalReason::TurnCap));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_service_is_not_asked_for_a_run_that_is_over() {
    let upstream = Upstream::script(failure(500)).busy(secs(3600));
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let run = Run::open();
    let request = run.attach(prompt("m"));
    let asked = upstream.clone();
    let ended = later(5, move || {
        run.end(TerminalReason::Aborted);
        asked.readiness_polls()
    });

    let error = service.oneshot(request).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
    assert_eq!(upstream.readiness_polls(), ended.await.unwrap());
    assert_eq!(upstream.calls(), 1);
}

/// Fallbacks from `a` to `b`, with repeats of each.
fn service(
    upstream: &Upstream,
    trusted: bool,
) -> tower_agent::model_fallback::ModelFallback<tower_agent::retry_budget::Retry<Upstream>> {
    let candidates = ["a", "b"].map(|name| Candidate::new(name).trusted(trusted));
    ServiceBuilder::new()
        .layer(ModelFallbackLayer::new(candidates))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone())
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

        let error = service(&upstream, true).oneshot(request).await.unwrap_err();

        let reason = reason_of(&error).unwrap();
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

        let answer = service(&upstream, false).oneshot(request).await.unwrap();
        answer.into_body().read().await.whole();

        assert_eq!(upstream.models(), asked);
        assert_eq!(call.terminal_reason(), Some(reason));
        assert_eq!(run.terminal_reason(), None);
    }
}
