//! Nobody is left to ask.
//!
//! covers: F7

use std::time::Duration;

use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::time::{Instant, advance};
use tower::{Layer, ServiceExt};
use tower_agent::{
    Candidate, CandidateDialect, Cooldowns, RetryBudgetLayer, Run, RunRegistry, TerminalReason,
    llm::failure::{AllCandidatesCoolingDown, FailureClass},
};

use super::{INSTANT, asks, cooled, minutes, models, of_account, unprobed};
use crate::support::{
    Place, ReadExt, Script, Stack, Upstream, attach, failure, healthy, no_delay, prompt,
    prompt_json, secs,
};

/// A part of the second for which a sole candidate is left alone at first.
const MOMENT: Duration = Duration::from_millis(400);

/// A time without a statement of the upstream begins at a second and doubles up to the usual steps.
#[tokio::test(start_paused = true)]
async fn a_sole_candidate_is_left_alone_for_a_second_and_then_longer() {
    for script in [failure(429), failure(503), Script::sse()] {
        let (service, upstream) = cooled(&unprobed(), [Candidate::new("a")]);
        upstream.play("a", script);
        for window in [1, 2, 4, 8, 16, 30, 60, 300, 300].map(secs) {
            drop(service.clone().oneshot(prompt("a")).await);
            advance(window - INSTANT).await;
            let error = service.clone().oneshot(prompt("a")).await.unwrap_err();
            assert_eq!(
                AllCandidatesCoolingDown::find(&*error).unwrap().soonest(),
                INSTANT
            );
            advance(INSTANT).await;
        }
    }
    // What a person has to end, and what the upstream states, is as it is for others.
    for (script, window) in [
        (failure(401), minutes(10)),
        (failure(503).header("retry-after", "7"), secs(7)),
    ] {
        let (service, upstream) = cooled(&unprobed(), [Candidate::new("a")]);
        upstream.play("a", script);
        drop(service.clone().oneshot(prompt("a")).await);
        let error = service.clone().oneshot(prompt("a")).await.unwrap_err();
        assert_eq!(
            AllCandidatesCoolingDown::find(&*error).unwrap().soonest(),
            window
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_sole_candidate_is_an_error_without_a_call_until_its_window_ends() {
    let (service, upstream) = cooled(&unprobed(), [Candidate::new("a")]);
    upstream.play("a", failure(500));
    assert_eq!(asks(&service, &upstream, prompt("a")).await, ["a"]);
    advance(MOMENT).await;
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));

    let error = service.clone().oneshot(request).await.unwrap_err();

    let error = error.downcast::<AllCandidatesCoolingDown>().unwrap();
    assert_eq!(error.soonest(), secs(1) - MOMENT);
    let [cooling] = &error.candidates[..] else {
        panic!()
    };
    assert_eq!(cooling.candidate, "a");
    assert_eq!(
        (cooling.left, cooling.class),
        (secs(1) - MOMENT, FailureClass::Server)
    );
    assert_eq!(
        error.to_string(),
        "every candidate is left alone after a failure: \"a\" for 1 s more (server)"
    );
    assert_eq!(upstream.calls(), 1);
    let reason = TerminalReason::Failed(FailureClass::Server);
    assert_eq!(call.terminal_reason(), Some(reason));
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);

    advance(secs(1) - MOMENT - INSTANT).await;
    assert!(service.clone().oneshot(prompt("a")).await.is_err());
    advance(INSTANT).await;
    upstream.play("a", healthy());
    let answer = service.oneshot(prompt("a")).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn of_several_the_one_that_is_back_first_counts() {
    let candidates = [
        of_account("a", "one"),
        of_account("b", "two"),
        of_account("c", "three"),
    ];
    let (service, upstream) = cooled(&unprobed(), candidates);
    for (model, status) in [("a", 401), ("b", 500), ("c", 402)] {
        upstream.play(model, failure(status));
    }
    assert_eq!(
        asks(&service, &upstream, prompt("a")).await,
        ["a", "b", "c"]
    );

    let error = service.clone().oneshot(prompt("b")).await.unwrap_err();

    let error = error.downcast::<AllCandidatesCoolingDown>().unwrap();
    let told = error
        .candidates
        .iter()
        .map(|it| (&*it.candidate, it.left, it.class));
    let told: Vec<_> = told.collect();
    let expected = [
        ("b", secs(30), FailureClass::Server),
        ("a", minutes(10), FailureClass::Auth),
        ("c", minutes(300), FailureClass::Quota),
    ];
    assert_eq!(told, expected);
    assert_eq!(error.soonest(), secs(30));
    assert_eq!(upstream.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn one_of_another_dialect_is_nobody() {
    let candidates = [
        Candidate::new("a"),
        Candidate::new("claude").dialect(CandidateDialect::Anthropic),
    ];
    let (service, upstream) = cooled(&unprobed(), candidates);
    upstream.play("a", failure(500));
    assert_eq!(asks(&service, &upstream, prompt("a")).await, ["a"]);

    let error = service.oneshot(prompt("claude")).await.unwrap_err();

    let error = error.downcast::<AllCandidatesCoolingDown>().unwrap();
    let [cooling] = &error.candidates[..] else {
        panic!()
    };
    assert_eq!(cooling.candidate, "a");
}

#[tokio::test(start_paused = true)]
async fn a_form_may_go_to_the_first_alone_and_says_when_that_is_back() {
    let candidates = [of_account("a", "one"), of_account("b", "two")];
    let (service, upstream) = cooled(&unprobed(), candidates);
    upstream.play("a", failure(401));
    upstream.play("b", failure(500));
    assert_eq!(asks(&service, &upstream, prompt("a")).await, ["a", "b"]);
    let form = || {
        Request::post("/v1/images/edits")
            .header("content-type", "multipart/form-data; boundary=b")
            .body(Full::from("--b--\r\n"))
            .unwrap()
    };
    for _ in 0..2 {
        let error = service.clone().oneshot(form()).await.unwrap_err();

        let error = error.downcast::<AllCandidatesCoolingDown>().unwrap();
        assert_eq!(error.candidates.len(), 1, "{error}");
        assert_eq!(error.candidates[0].candidate, "a");
        assert!(error.soonest() > minutes(9));
        assert_eq!(upstream.calls(), 2);
        // The other one is back: it is no help.
        advance(secs(30)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn callers_are_told_when_it_ends_in_the_shape_of_their_dialect() {
    for uri in ["/v1/chat/completions", "/v1/responses", "/v1/messages"] {
        let mut asked = prompt_json("a");
        *asked.uri_mut() = Uri::from_static(uri);
        let upstream = Upstream::script(healthy());
        upstream.play("a", failure(500).header("retry-after", "30"));
        let stack = Stack::default()
            .terminal()
            .run(&RunRegistry::new())
            .layer(Place::Fallback, models(["a"]).cooldowns(unprobed()))
            .build(&upstream);
        let first = stack.clone().oneshot(asked.clone()).await.unwrap();
        assert_eq!(first.status(), StatusCode::INTERNAL_SERVER_ERROR);
        // Seconds are told, never too few.
        advance(secs(10) + INSTANT).await;

        let answer = stack.clone().oneshot(asked.clone()).await.unwrap();

        assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
        let headers = answer.headers().clone();
        assert_eq!(headers["retry-after"], "20");
        assert_eq!(headers["content-type"], "application/json");
        assert!(headers.contains_key("x-run-id"));
        assert!(!headers.contains_key("x-terminal-reason"));
        assert!(!headers.contains_key("x-should-retry"));
        let body: Value = serde_json::from_str(&answer.into_body().read().await.whole()).unwrap();
        let message = "No model was asked: all that could serve have failed, and are left alone \
                       for 20 s more.";
        let code = "cooling_down";
        let expected = if uri == "/v1/messages" {
            json!({"type": "error", "error": {"type": code, "message": message}})
        } else {
            json!({"error": {"message": message, "type": code, "code": code, "param": null}})
        };
        assert_eq!(body, expected);
        assert_eq!(upstream.calls(), 1);

        advance(secs(20) - INSTANT).await;
        upstream.play("a", Script::answer(200, "{}"));
        let outcome = stack.ask(asked.clone()).await;
        assert_eq!(outcome.status, 200);
        outcome.whole();
    }
}

#[tokio::test(start_paused = true)]
async fn repeats_outside_ask_again_when_the_window_ends_or_not_at_all() {
    for (longest, times) in [(secs(60), vec![secs(0), secs(1)]), (MOMENT, vec![secs(0)])] {
        let upstream = Upstream::scripts([failure(500), healthy()]);
        let layer = models(["a"]).cooldowns(Cooldowns::new());
        let budget = no_delay().max_attempts_per_candidate(3);
        let repeats = RetryBudgetLayer::new(budget.max_retry_after(longest));
        let service = repeats.layer(layer.layer(upstream.clone()));
        let start = Instant::now();

        let answer = service.oneshot(prompt("a")).await;

        assert_eq!(answer.is_ok(), times.len() == 2);
        if let Err(error) = answer {
            assert_eq!(
                AllCandidatesCoolingDown::find(&*error)
                    .unwrap()
                    .candidates
                    .len(),
                1
            );
        }
        assert_eq!(upstream.times(start), times);
    }
}

#[tokio::test(start_paused = true)]
async fn they_can_be_listed_and_ended_by_the_candidates_name() {
    let cooldowns = unprobed();
    let candidates = [
        of_account("a", "one"),
        of_account("b", "one"),
        of_account("c", "two"),
    ];
    let (service, upstream) = cooled(&cooldowns, candidates);
    assert!(cooldowns.list().is_empty());
    upstream.play("a", failure(401));
    upstream.play("c", failure(500));
    let ask = |model| asks(&service, &upstream, prompt(model));
    assert_eq!(ask("a").await, ["a", "c"]);
    advance(secs(10)).await;

    let listed = || {
        let list = cooldowns.list().into_iter();
        let named = list.map(|it| (it.candidate, it.left, it.class));
        named.collect::<Vec<_>>()
    };
    let a = ("a".to_owned(), secs(590), FailureClass::Auth);
    let c = ("c".to_owned(), secs(20), FailureClass::Server);
    assert_eq!(listed(), [c, a.clone()]);

    assert_eq!(cooldowns.clear("unknown"), 0);
    assert_eq!(cooldowns.clear("c"), 1);
    assert_eq!(listed(), [a]);
    // The account of `a` is that of `b`.
    assert_eq!(cooldowns.clear("b"), 1);
    assert!(listed().is_empty() && cooldowns.is_empty());
    upstream.play("a", healthy());
    assert_eq!(ask("a").await, ["a"]);
}
