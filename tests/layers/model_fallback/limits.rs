//! The time of a call, and how its candidates share it.

use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, HardCeilingLayer, Limits, ModelFallbackLayer, RetryBudget, Run, Scope,
    TerminalReason, llm::failure::FailureClass,
};

use super::models;
use crate::support::{
    DONE, Outcome, PRELUDE, Place, ReadExt, Script, Stack, Upstream, attach, chat, failure,
    healthy, prompt, prompt_json, reason_of, secs,
};

#[tokio::test(start_paused = true)]
async fn each_candidate_gets_its_share_of_the_time_that_is_left() {
    for scope in [Scope::Found, Scope::Run] {
        for script in [
            Script::before_head().never(),
            Script::sse().data(PRELUDE).never(),
            Script::json().data("{").never(),
        ] {
            let upstream = Upstream::script(script);
            let stack = Stack::default()
                .layer(Place::Ceiling, HardCeilingLayer::new(secs(30)).scope(scope))
                .candidates(["a", "b", "c"]);
            let run = Run::open();
            let (request, call) = attach(&run, prompt("a"));
            let start = Instant::now();

            let outcome = stack.build(&upstream).ask(request).await;

            assert_eq!(outcome.status, Outcome::NO_ANSWER);
            assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
            assert_eq!(call.terminal_reason(), Some(TerminalReason::HardCeiling));
            assert_eq!(upstream.times(start), [secs(0), secs(10), secs(20)]);
            assert_eq!(outcome.at, secs(30));
            assert_eq!(run.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_does_not_use_is_shared_by_the_others() {
    let early = Script::before_head().wait(4.0).fail("reset");
    let upstream = Upstream::scripts([early, Script::before_head().never()]);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(30)))
        .layer(models(["a", "b", "c"]))
        .service(upstream.clone());
    let start = Instant::now();

    service.oneshot(prompt("a")).await.unwrap_err();

    assert_eq!(upstream.times(start), [secs(0), secs(4), secs(17)]);
    assert_eq!(start.elapsed(), secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_share_is_a_limit_to_the_commit_and_no_further() {
    let slow = Script::sse()
        .wait(9.0)
        .data(chat("a"))
        .repeat(18, 1.0, chat("b"))
        .data(DONE);
    let upstream = Upstream::scripts([slow, healthy()]);
    let stack = Stack::default().ceiling(30).candidates(["a", "b", "c"]);

    let outcome = stack.build(&upstream).ask(prompt("a")).await;
    let text = outcome.whole();

    assert_eq!(text, chat("a") + &chat("b").repeat(18) + DONE);
    assert_eq!(outcome.at, secs(27));
    assert_eq!(upstream.calls(), 1);
}

/// covers: F4
#[tokio::test(start_paused = true)]
async fn without_shares_a_candidate_may_take_the_whole_rest() {
    for (share, asked) in [(true, &[0, 4, 17][..]), (false, &[0, 4])] {
        let early = Script::before_head().wait(4.0).fail("reset");
        let upstream = Upstream::scripts([early, Script::before_head().never()]);
        let service = ServiceBuilder::new()
            .layer(HardCeilingLayer::new(secs(30)))
            .layer(models(["a", "b", "c"]).share(share))
            .service(upstream.clone());
        let start = Instant::now();

        service.oneshot(prompt("a")).await.unwrap_err();

        let asked: Vec<_> = asked.iter().copied().map(secs).collect();
        assert_eq!(upstream.times(start), asked, "{share}");
        assert_eq!(start.elapsed(), secs(30));
    }
}

#[tokio::test(start_paused = true)]
async fn the_ceiling_of_the_call_holds_on_after_the_commit() {
    let endless = Script::sse().data(chat("a")).never();
    let upstream = Upstream::scripts([endless, healthy()]);
    let stack = Stack::default().ceiling(30).candidates(["a", "b", "c"]);

    let outcome = stack.build(&upstream).ask(prompt("a")).await;

    assert_eq!(outcome.text, chat("a"));
    assert_eq!(outcome.terminated().reason, TerminalReason::HardCeiling);
    assert_eq!(outcome.at, secs(30));
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_a_ceiling_nothing_is_shared() {
    let slow = Script::before_head()
        .wait(5_000.0)
        .head("text/event-stream")
        .data(chat("a"))
        .data(DONE);
    let upstream = Upstream::scripts([slow, healthy()]);
    let stack = Stack::default().candidates(["a", "b", "c"]);

    let outcome = stack.build(&upstream).ask(prompt("a")).await;

    assert_eq!(outcome.headers["x-served-model"], "a");
    assert_eq!(outcome.at, secs(5_000));
}

/// covers: F4
#[tokio::test(start_paused = true)]
async fn a_candidate_for_which_the_time_does_not_last_is_not_asked() {
    // The first one's share ends at 15 s, with 15 s left.
    for (least, served) in [(15, true), (16, false)] {
        let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
        let budget = RetryBudget::new().min_attempt(secs(least));
        let service = ServiceBuilder::new()
            .layer(HardCeilingLayer::new(secs(30)))
            .layer(models(["a", "b"]).budget(budget))
            .service(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt("a"));
        let start = Instant::now();

        match service.oneshot(request).await {
            Ok(answer) => drop(answer.into_body().read().await.whole()),
            Err(error) => {
                // Its own deadline is told as what it is.
                assert_eq!(reason_of(&error), call.terminal_reason());
                assert_eq!(call.terminal_reason(), Some(TerminalReason::HardCeiling));
            }
        }

        assert_eq!(start.elapsed(), secs(15));
        assert_eq!(upstream.calls(), if served { 2 } else { 1 });
        let completed = call.terminal_reason() == Some(TerminalReason::Completed);
        assert_eq!(completed, served);
        assert_eq!(run.in_flight(), 0);
    }
}

/// covers: T37
#[tokio::test(start_paused = true)]
async fn the_limits_of_a_candidate_replace_those_of_the_layers() {
    let limits = Limits {
        ceiling: Some(secs(5)),
        step: Some(secs(3)),
        ..Limits::default()
    };
    let candidates = [Candidate::new("a").limits(limits), Candidate::new("b")];
    let silent = Script::before_head().never();
    let upstream = Upstream::scripts([silent.clone(), silent]);
    let stack = Stack::default()
        .fallback(candidates)
        .attempt_ceiling(60)
        .attempt_step(40);
    let start = Instant::now();

    let outcome = stack.build(&upstream).ask(prompt("a")).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
    assert_eq!(upstream.times(start), [secs(0), secs(3)]);
    assert_eq!(outcome.at, secs(43));
}

#[tokio::test(start_paused = true)]
async fn a_failed_candidate_restarts_the_window_of_the_call() {
    let slow = Script::before_head().wait(9.0).fail("reset");
    let upstream = Upstream::scripts([slow.clone(), slow, Script::before_head().never()]);
    let stack = Stack::default().step(10).candidates(["a", "b", "c"]);
    let start = Instant::now();

    let outcome = stack.build(&upstream).ask(prompt("a")).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
    assert_eq!(upstream.times(start), [secs(0), secs(9), secs(18)]);
    assert_eq!(outcome.at, secs(28));
}

#[tokio::test(start_paused = true)]
async fn failures_of_calls_are_counted_on_their_run_if_a_budget_says_so() {
    let upstream = Upstream::script(failure(500));
    let budget = RetryBudget::new().per_error_key(2);
    let service = models(["a", "b"]).budget(budget).layer(upstream.clone());
    let run = Run::open();

    for _ in 0..3 {
        assert_eq!(run.terminal_reason(), None);
        let request = run.attach(prompt("a"));
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 500);
        answer.into_body().read().await.whole();
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
    let request = run.attach(prompt("a"));
    let error = service.oneshot(request).await.unwrap_err();
    assert_eq!(reason_of(&error), Some(TerminalReason::RetryBudget));
    assert_eq!(upstream.calls(), 6);
    let server = TerminalReason::Failed(FailureClass::Server);
    assert!(
        upstream
            .reasons()
            .iter()
            .all(|reason| *reason == Some(server.clone()))
    );
}

#[tokio::test(start_paused = true)]
async fn limits_of_the_request_and_of_the_candidate_hold_together() {
    let talking = Script::sse().repeat(10, 2.0, chat("a"));
    let silent = Script::sse().data(chat("a")).never();
    for (script, reason, at) in [
        (talking, TerminalReason::HardCeiling, 5),
        (silent, TerminalReason::StepTimeout, 3),
    ] {
        let limits = Limits {
            step: Some(secs(3)),
            ..Limits::default()
        };
        let stack = Stack::default()
            .layer(
                Place::Fallback,
                ModelFallbackLayer::new([Candidate::new("a").limits(limits)]),
            )
            .attempt_ceiling(600)
            .attempt_step(600)
            .build(&Upstream::script(script));
        let mut request = prompt("a");
        request.extensions_mut().insert(Limits {
            ceiling: Some(secs(5)),
            ..Limits::default()
        });

        let outcome = stack.ask(request).await;

        assert_eq!(outcome.terminated().reason, reason);
        assert_eq!(outcome.at, secs(at));
    }
}

/// covers: A5
#[tokio::test(start_paused = true)]
async fn where_both_say_the_same_limit_the_requests_holds() {
    let of = |seconds| Limits {
        step: Some(secs(seconds)),
        ..Limits::default()
    };
    for (of_request, of_candidate) in [(3, 8), (8, 3), (8, 0)] {
        let candidate = Candidate::new("a").limits(of(of_candidate));
        let stack = Stack::default()
            .layer(Place::Fallback, ModelFallbackLayer::new([candidate]))
            .attempt_step(600)
            .build(&Upstream::script(Script::before_head().never()));
        let mut request = prompt_json("a");
        request.extensions_mut().insert(of(of_request));

        let outcome = stack.ask(request).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
        assert_eq!(outcome.at, secs(of_request));
    }
}

/// covers: A5
#[tokio::test(start_paused = true)]
async fn zero_among_the_limits_of_a_candidate_or_its_request_switches_the_layers_off() {
    let zero = Limits {
        step: Some(secs(0)),
        ceiling: Some(secs(0)),
        ..Limits::default()
    };
    let short = Limits {
        step: Some(secs(3)),
        ceiling: Some(secs(4)),
        ..Limits::default()
    };
    for (of_request, of_candidate) in [(None, zero), (Some(zero), short)] {
        let candidate = Candidate::new("a").limits(of_candidate);
        let stack = Stack::default()
            .layer(Place::Fallback, ModelFallbackLayer::new([candidate]))
            .attempt_ceiling(6)
            .attempt_step(5)
            .build(&Upstream::script(
                Script::before_head()
                    .wait(60.0)
                    .head("text/event-stream")
                    .data(DONE),
            ));
        let mut request = prompt("a");
        if let Some(limits) = of_request {
            request.extensions_mut().insert(limits);
        }

        let outcome = stack.ask(request).await;

        assert_eq!((outcome.status, outcome.at), (200, secs(60)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_candidate_that_is_never_ready_has_its_share_of_the_time_and_no_more() {
    let upstream = Upstream::script(failure(500));
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(9)))
        .layer(models(["a", "b", "c"]))
        .service(upstream.clone().busy(secs(6)));
    let start = Instant::now();

    let answer = service.oneshot(prompt("a")).await.unwrap();

    // b is given up at half of the nine seconds; c finds the service ready.
    assert_eq!(answer.headers()["x-served-model"], "c");
    assert_eq!(start.elapsed(), secs(6));
    assert!(upstream.requests()[1].body().contains(r#""c""#));
}
