//! A list of candidates for one request.
//!
//! covers: F5

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, CandidateDialect, CandidateOrder, Cooldowns, ModelFallbackLayer, Run, RunLayer,
    RunRegistry, TerminalReason, TerminalResponseLayer, error::InvalidRequest,
    llm::failure::FailureClass,
};

use super::{asks, models};
use crate::support::{ERROR, ReadExt, Stack, Upstream, attach, failure, healthy, prompt};

fn listing<const N: usize>(model: &str, names: [&str; N]) -> Request<Full<Bytes>> {
    let mut request = prompt(model);
    request.extensions_mut().insert(CandidateOrder::new(names));
    request
}

/// The models that one call with this list asks, if all of them fail.
async fn order<const N: usize>(model: &str, names: [&str; N]) -> Vec<String> {
    let upstream = Upstream::script(failure(500));
    let stack = Stack::default().candidates(["a", "b", "c", "d"]);
    stack.build(&upstream).ask(listing(model, names)).await;
    upstream.models()
}

#[tokio::test(start_paused = true)]
async fn it_says_who_and_in_which_order() {
    assert_eq!(order("unknown", ["c", "a"]).await, ["c", "a"]);
    assert_eq!(order("unknown", ["d"]).await, ["d"]);
    assert_eq!(
        order("unknown", ["d", "c", "b", "a"]).await,
        ["d", "c", "b", "a"]
    );
}

#[tokio::test(start_paused = true)]
async fn who_is_listed_twice_is_asked_once() {
    assert_eq!(order("unknown", ["c", "a", "c", "a"]).await, ["c", "a"]);
}

#[tokio::test(start_paused = true)]
async fn the_requested_model_goes_first_and_once_listed_or_not() {
    assert_eq!(order("a", ["c", "a", "d"]).await, ["a", "c", "d"]);
    assert_eq!(order("b", ["c", "a"]).await, ["b", "c", "a"]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_leaves_the_requested_model_or_the_first_alone() {
    assert_eq!(order("c", []).await, ["c"]);
    assert_eq!(order("unknown", []).await, ["a"]);

    let upstream = Upstream::script(failure(500).header("x-request-id", "r"));
    let stack = Stack::default().candidates(["a", "b"]).build(&upstream);
    let mut request = prompt("a");
    request.extensions_mut().insert(CandidateOrder::none());
    let outcome = stack.ask(request).await;
    assert_eq!(outcome.status, 500);
    assert_eq!(outcome.headers["x-request-id"], "r");
    assert_eq!(outcome.whole(), ERROR);
}

#[tokio::test(start_paused = true)]
async fn an_empty_list_leaves_the_first_that_speaks_the_dialect() {
    let upstream = Upstream::script(failure(500));
    let candidates = [
        Candidate::new("claude").dialect(CandidateDialect::Anthropic),
        Candidate::new("gpt").dialect(CandidateDialect::OpenAi),
        Candidate::new("other").dialect(CandidateDialect::OpenAi),
    ];
    let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());

    for model in ["unknown", "claude"] {
        let asked = asks(&service, &upstream, listing(model, [])).await;
        assert_eq!(asked, ["gpt"]);
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_for_that_request_alone() {
    let upstream = Upstream::script(failure(500));
    let service = models(["a", "b"]).layer(upstream.clone());

    assert_eq!(asks(&service, &upstream, listing("a", [])).await, ["a"]);
    assert_eq!(asks(&service, &upstream, prompt("a")).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn names_are_those_of_candidates_and_not_their_models() {
    let upstream = Upstream::script(healthy());
    let candidates = [
        Candidate::new("gpt-1").name("large"),
        Candidate::new("gpt-2").name("small"),
    ];
    let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());

    let asked = asks(&service, &upstream, listing("unknown", ["small"])).await;

    assert_eq!(asked, ["gpt-2"]);
    let error = service.oneshot(listing("unknown", ["gpt-1"])).await;
    assert!(error.unwrap_err().is::<InvalidRequest>());
}

#[tokio::test(start_paused = true)]
async fn an_unknown_name_is_an_error_that_names_it() {
    let upstream = Upstream::script(healthy());
    let service = models(["a", "b"]).layer(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, listing("a", ["b", "typo"]));

    let error = service.oneshot(request).await.unwrap_err();

    let error = error.downcast::<InvalidRequest>().unwrap();
    assert_eq!(
        error.to_string(),
        "the request's list of candidates names \"typo\", which is none of a, b"
    );
    assert_eq!(upstream.calls(), 0);
    let reason = TerminalReason::Failed(FailureClass::Caller);
    assert_eq!(call.terminal_reason(), Some(reason));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_caller_is_told_400() {
    let upstream = Upstream::script(healthy());
    let service = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(models(["a", "b"]))
        .service(upstream.clone());

    let answer = service.oneshot(listing("a", ["typo"])).await.unwrap();

    assert_eq!(answer.status(), 400);
    assert!(!answer.headers().contains_key("x-terminal-reason"));
    let body = answer.into_body().read().await.whole();
    assert!(body.contains("typo"), "{body}");
    assert_eq!(upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn if_nobody_listed_speaks_the_dialect_the_error_names_those() {
    let upstream = Upstream::script(healthy());
    let candidates = [
        Candidate::new("claude").dialect(CandidateDialect::Anthropic),
        Candidate::new("gpt").dialect(CandidateDialect::OpenAi),
    ];
    let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());

    let error = service.oneshot(listing("unknown", ["claude"])).await;

    let error = error.unwrap_err().downcast::<InvalidRequest>().unwrap();
    assert_eq!(
        error.to_string(),
        "the request is in the openai dialect, and every candidate (claude) speaks anthropic"
    );
    assert_eq!(upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn who_is_left_alone_is_skipped_on_it() {
    let upstream = Upstream::script(healthy());
    let layer = models(["a", "b", "c"]).cooldowns(Cooldowns::new());
    let service = layer.layer(upstream.clone());
    upstream.play("c", failure(500));
    let ask = || asks(&service, &upstream, listing("unknown", ["c", "a"]));

    assert_eq!(ask().await, ["c", "a"]);
    assert_eq!(ask().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_layer_without_candidates_has_no_use_for_it() {
    let upstream = Upstream::script(failure(500));
    let service = models([]).layer(upstream.clone());

    let asked = asks(&service, &upstream, listing("a", ["b"])).await;

    assert_eq!(asked, ["a"]);
}
