//! What failed decides who comes next.
//!
//! covers: F3

use tokio::time::Instant;
use tower::{Layer, ServiceExt};
use tower_agent::{
    Candidate, HardCeilingLayer, RetryBudget, StepTimeoutLayer, TerminalReason,
    llm::failure::FailureClass,
};

use super::{at, models};
use crate::support::{
    ERROR, PRELUDE, Place, Script, Stack, Upstream, failure, healthy, healthy_text, prompt,
    prompt_as, secs,
};

/// The models that a call asks if its first attempt fails with this script.
async fn asked<const N: usize>(script: Script, candidates: [Candidate; N]) -> Vec<String> {
    let upstream = Upstream::scripts([script, healthy()]);
    let stack = Stack::default().fallback(candidates).build(&upstream);
    stack.oneshot(prompt("a")).await.unwrap();
    upstream.models()
}

#[tokio::test(start_paused = true)]
async fn what_another_may_do_better_moves_on() {
    let html = Script::of("text/html").data("<!doctype html><p>busy");
    let event = "data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\"}}\n\n";
    for script in [
        failure(408),
        failure(429),
        failure(500),
        failure(529),
        Script::error_code(413, "rate_limit_exceeded"),
        Script::error_code(404, "model_not_found"),
        Script::before_head().fail("reset"),
        Script::sse().data(PRELUDE).fail("reset"),
        Script::sse().data(PRELUDE),
        Script::sse().data(PRELUDE).data(event),
        html,
        Script::answer(200, ERROR),
    ] {
        let plain = ["a", "b"].map(Candidate::new);
        assert_eq!(asked(script.clone(), plain).await, ["a", "b"], "{script:?}");
    }
}

/// covers: F8
#[tokio::test(start_paused = true)]
async fn what_the_caller_did_wrong_goes_nowhere() {
    for script in [
        failure(400),
        failure(404),
        failure(409),
        failure(413),
        failure(422),
        Script::error_code(400, "content_filter"),
    ] {
        let other = at("b", "http://two.test/v1");
        let other = other.credential("other").context_window(1_000_000);
        let candidates = [Candidate::new("a").context_window(1_000), other];
        assert_eq!(asked(script.clone(), candidates).await, ["a"], "{script:?}");
    }
}

/// covers: G3
#[tokio::test(start_paused = true)]
async fn an_upstream_that_forbids_a_repeat_says_nothing_of_others() {
    let script = failure(500).header("x-should-retry", "false");

    assert_eq!(
        asked(script, ["a", "b"].map(Candidate::new)).await,
        ["a", "b"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_refused_or_empty_account_goes_to_another_account() {
    for script in [
        failure(401),
        failure(402),
        failure(403),
        Script::error_code(429, "insufficient_quota"),
    ] {
        let of = |name: &str, id: &str| Candidate::new(name).credential(id);
        let candidates = [of("a", "one"), of("b", "one"), of("c", "two")];
        assert_eq!(asked(script.clone(), candidates).await, ["a", "c"]);

        let keyed = |name: &str, key| Candidate::new(name).api_key(key).unwrap();
        let candidates = [keyed("a", "k1"), keyed("b", "k1"), keyed("c", "k2")];
        assert_eq!(asked(script.clone(), candidates).await, ["a", "c"]);

        let same = ["a", "b"].map(Candidate::new);
        assert_eq!(asked(script, same).await, ["a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_region_that_is_not_served_goes_to_another_provider() {
    let script = || Script::error_code(403, "unsupported_country_region_territory");
    let keyed = |name: &str, url| at(name, url).api_key(name).unwrap();
    let same = keyed("b", "http://one.test/v2");
    let other = keyed("c", "http://two.test/v1");

    let candidates = [keyed("a", "http://one.test/v1"), same, other];
    assert_eq!(asked(script(), candidates).await, ["a", "c"]);
    assert_eq!(asked(script(), ["a", "b"].map(Candidate::new)).await, ["a"]);
}

/// covers: F8
#[tokio::test(start_paused = true)]
async fn a_context_that_overflows_goes_to_a_larger_window() {
    let script = || Script::error_code(400, "context_length_exceeded");
    let sized = |name: &str, tokens| Candidate::new(name).context_window(tokens);

    let candidates = [
        sized("a", 8_000),
        sized("b", 8_000),
        Candidate::new("unknown"),
        sized("c", 100_000),
    ];
    assert_eq!(asked(script(), candidates).await, ["a", "c"]);
    let none = [Candidate::new("a"), sized("b", 100_000)];
    assert_eq!(asked(script(), none).await, ["a"]);
}

/// covers: F8
#[tokio::test(start_paused = true)]
async fn matters_of_taste_move_on_if_the_program_says_so() {
    for (script, class) in [
        (
            Script::error_code(400, "content_filter"),
            FailureClass::ContentFilter,
        ),
        (failure(413), FailureClass::TooLarge),
        (failure(400), FailureClass::Caller),
    ] {
        let upstream = Upstream::scripts([script.clone(), healthy()]);
        let service = models(["a", "b"]).also_after(class).layer(upstream.clone());

        service.oneshot(prompt("a")).await.unwrap();

        assert_eq!(upstream.models(), ["a", "b"]);
        let upstream = Upstream::scripts([failure(409), healthy()]);
        let service = models(["a", "b"]).also_after(FailureClass::Conflict);
        service
            .layer(upstream.clone())
            .oneshot(prompt("a"))
            .await
            .unwrap();
        assert_eq!(upstream.calls(), 1, "others are not affected");
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_rate_limit_of_another() {
    let limited = failure(429).header("retry-after", "3600");
    let upstream = Upstream::scripts([limited, healthy()]);
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
    let start = Instant::now();

    let outcome = stack.ask(prompt("a")).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(upstream.times(start), [secs(0), secs(0)]);
}

/// covers: F2
#[tokio::test(start_paused = true)]
async fn an_attempts_own_silence_or_ceiling_moves_on() {
    for stream in [true, false] {
        for (step, ceiling) in [(Some(secs(10)), None), (None, Some(secs(10)))] {
            let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
            let stack = Stack::default()
                .candidates(["a", "b"])
                .layer(Place::AttemptCeiling, HardCeilingLayer::optional(ceiling))
                .layer(Place::AttemptStep, StepTimeoutLayer::optional(step));
            let start = Instant::now();

            let outcome = stack.build(&upstream).ask(prompt_as("a", stream)).await;

            assert_eq!(outcome.headers["x-served-model"], "b");
            assert_eq!(upstream.times(start), [secs(0), secs(10)]);
            let reason = match step {
                Some(_) => TerminalReason::StepTimeout,
                None => TerminalReason::HardCeiling,
            };
            assert_eq!(upstream.reasons()[0], Some(reason));
        }
    }
}

/// covers: G2
#[tokio::test(start_paused = true)]
async fn a_long_wait_at_one_is_not_waited_out_while_another_can_serve() {
    let limited = |seconds| failure(429).header("retry-after", seconds);
    for (script, candidates, models, waited) in [
        (limited("30"), &["a", "b"][..], &["a", "b"][..], 0),
        // No longer than the backoff of the budget.
        (limited("1"), &["a", "b"], &["a", "a"], 1),
        // Nobody else could serve.
        (limited("30"), &["a"], &["a", "a"], 30),
        // Nobody else is asked after a conflict.
        (
            failure(409).header("retry-after", "30"),
            &["a", "b"],
            &["a", "a"],
            30,
        ),
    ] {
        let upstream = Upstream::scripts([script, healthy()]);
        let budget = RetryBudget::new().delays(secs(1), secs(1));
        let stack = Stack::default()
            .budget(budget)
            .fallback(candidates.iter().map(|name| Candidate::new(*name)))
            .build(&upstream);
        let start = Instant::now();

        stack.oneshot(prompt("a")).await.unwrap();

        assert_eq!(upstream.models(), models);
        assert_eq!(start.elapsed(), secs(waited), "{candidates:?}");
    }
}

/// covers: F3
#[tokio::test(start_paused = true)]
async fn a_host_that_cannot_be_reached_for_all_is_not_asked_twice_in_a_call() {
    let error = |text: &'static str| Script::before_head().fail(text);
    let region = Script::error_code(403, "unsupported_country_region_territory");
    for (script, skips) in [
        (error("invalid peer certificate: UnknownIssuer"), true),
        (
            error("failed to lookup address information: Name or service not known"),
            true,
        ),
        (error("dns error"), true),
        (region, true),
        (error("connection reset"), false),
    ] {
        for middle in [failure(500), error("connection reset")] {
            let candidates = [
                at("a", "http://one.test/v1"),
                at("b", "http://two.test/v1"),
                at("c", "http://one.test/v2"),
                at("d", "http://three.test/v1"),
            ];
            let upstream = Upstream::script(healthy());
            upstream.play("a", script.clone());
            upstream.play("b", middle);
            upstream.play("c", failure(500));
            let stack = Stack::default().fallback(candidates).build(&upstream);

            stack.oneshot(prompt("a")).await.unwrap();

            let models = if skips {
                &["a", "b", "d"][..]
            } else {
                &["a", "b", "c", "d"]
            };
            assert_eq!(upstream.models(), models, "{script:?}");
        }
    }
}

/// covers: G4
#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_repeated_only_if_no_other_can_serve() {
    for (candidates, models) in [
        (&["a", "b"][..], &["a", "b"][..]),
        (&["b", "a"], &["a", "b"]),
        (&["a"], &["a", "a"]),
    ] {
        let upstream = Upstream::scripts([Script::sse().data(PRELUDE).never(), healthy()]);
        let stack = Stack::default()
            .attempt_step(10)
            .retry(2)
            .fallback(candidates.iter().map(|name| Candidate::new(*name)))
            .build(&upstream);
        let start = Instant::now();

        stack.oneshot(prompt_as("a", true)).await.unwrap();

        assert_eq!(upstream.models(), models);
        assert!(start.elapsed() < secs(20), "{:?}", start.elapsed());
    }
}

/// covers: F3, F8
#[tokio::test(start_paused = true)]
async fn what_an_earlier_failure_ruled_out_is_not_asked_after_a_later_one() {
    let of = |name: &str, id: &str| Candidate::new(name).credential(id);
    let sized = |name: &str, tokens| Candidate::new(name).context_window(tokens);
    for (script, candidates) in [
        (
            failure(401),
            [
                of("a", "one"),
                of("b", "two"),
                of("c", "one"),
                of("d", "three"),
            ],
        ),
        (
            Script::error_code(400, "context_length_exceeded"),
            [sized("a", 8), sized("b", 16), sized("c", 8), sized("d", 32)],
        ),
    ] {
        let upstream = Upstream::script(healthy());
        upstream.play("a", script.clone());
        upstream.play("b", failure(500));
        let stack = Stack::default().fallback(candidates).build(&upstream);

        stack.oneshot(prompt("a")).await.unwrap();

        assert_eq!(upstream.models(), ["a", "b", "d"], "{script:?}");
    }
}
