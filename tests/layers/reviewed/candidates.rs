//! Who is asked, with what.

use http::{HeaderValue, Request, Uri};
use http_body_util::Full;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, CandidateDialect, HardCeilingLayer, Limits, ModelFallbackLayer, StepTimeoutLayer,
    TerminalReason, terminal_response::InvalidRequest,
};

use crate::support::{
    ERROR, ReadExt, STOP, Script, Upstream, chat, content_block, failure, healthy, prompt,
    prompt_json, reason_of, secs,
};

/// A candidate at an upstream of its own.
fn at(model: &str, url: &str) -> Candidate {
    Candidate::new(model)
        .base_url(url.parse().unwrap())
        .unwrap()
}

/// To a path at which no operation is known.
fn unknown() -> Request<Full<bytes::Bytes>> {
    let mut request = prompt_json("a");
    *request.uri_mut() = Uri::from_static("/v1/threads");
    request
}

#[tokio::test(start_paused = true)]
async fn where_no_operation_is_known_only_the_callers_own_upstream_is_asked() {
    let [near, far] = [Candidate::new("a"), at("b", "http://b.test/v1")];
    for candidates in [[near.clone(), far.clone()], [far, near]] {
        let upstream = Upstream::scripts([failure(500)]);
        let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());

        let answer = service.oneshot(unknown()).await.unwrap();

        assert_eq!(answer.status(), 500);
        assert_eq!(answer.into_body().read().await.whole(), ERROR);
        assert_eq!(upstream.models(), ["a"]);
        assert_eq!(upstream.requests()[0].uri, "/v1/threads");
    }
}

#[tokio::test(start_paused = true)]
async fn where_no_operation_is_known_and_all_are_elsewhere_the_request_is_refused() {
    let upstream = Upstream::scripts([healthy()]);
    let service = ModelFallbackLayer::new([at("b", "http://b.test/v1")]).layer(upstream.clone());

    let error = service.oneshot(unknown()).await.unwrap_err();

    let error = error.downcast::<InvalidRequest>().unwrap();
    assert_eq!(
        error.to_string(),
        "no operation of a model is known at \"/v1/threads\""
    );
    assert_eq!(upstream.calls(), 0);
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
        let service = ServiceBuilder::new()
            .layer(ModelFallbackLayer::new(
                [Candidate::new("a").limits(limits)],
            ))
            .layer(HardCeilingLayer::new(secs(600)))
            .layer(StepTimeoutLayer::new(secs(600)))
            .service(Upstream::scripts([script]));
        let mut request = prompt("a");
        request.extensions_mut().insert(Limits {
            ceiling: Some(secs(5)),
            ..Limits::default()
        });
        let start = Instant::now();

        let answer = service.oneshot(request).await.unwrap();
        let read = answer.into_body().read().await;

        assert_eq!(read.reason(), Some(reason));
        assert_eq!(start.elapsed(), secs(at));
    }
}

#[tokio::test(start_paused = true)]
async fn where_both_say_the_same_limit_the_requests_holds() {
    let of = |seconds| Limits {
        step: Some(secs(seconds)),
        ..Limits::default()
    };
    for (of_request, of_candidate) in [(3, 8), (8, 3)] {
        let candidate = Candidate::new("a").limits(of(of_candidate));
        let service = ServiceBuilder::new()
            .layer(ModelFallbackLayer::new([candidate]))
            .layer(StepTimeoutLayer::new(secs(600)))
            .service(Upstream::scripts([Script::before_head().never()]));
        let mut request = prompt_json("a");
        request.extensions_mut().insert(of(of_request));
        let start = Instant::now();

        let error = service.oneshot(request).await.unwrap_err();

        assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
        assert_eq!(start.elapsed(), secs(of_request));
    }
}

#[tokio::test(start_paused = true)]
async fn one_model_at_two_upstreams_is_two_candidates() {
    for urls in [
        ["http://one.test/v1", "http://two.test/v1"],
        ["http://one.test/v1", "http://one.test/backup/v1"],
    ] {
        let upstream = Upstream::scripts([failure(500), healthy()]);
        let service = ModelFallbackLayer::new(urls.map(|url| at("m", url)));
        let service = service.layer(upstream.clone());

        let answer = service.oneshot(prompt("m")).await.unwrap();

        assert_eq!(answer.status(), 200);
        let asked: Vec<_> = upstream
            .requests()
            .iter()
            .map(|it| it.uri.to_string())
            .collect();
        assert_eq!(asked, urls.map(|url| format!("{url}/chat/completions")));
    }
}

#[tokio::test(start_paused = true)]
async fn one_model_in_two_dialects_is_two_candidates() {
    let dialects = [CandidateDialect::OpenAi, CandidateDialect::Anthropic];
    let candidates = dialects.map(|dialect| Candidate::new("m").dialect(dialect));
    let upstream = Upstream::scripts([Script::sse().data(content_block("a")).data(STOP)]);
    let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());
    let mut request = prompt("m");
    *request.uri_mut() = Uri::from_static("/v1/messages");

    let answer = service.oneshot(request).await.unwrap();

    assert_eq!(answer.status(), 200);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_is_listed_twice_exactly_is_one_candidate() {
    for candidate in [Candidate::new("m"), at("m", "http://one.test/v1")] {
        let upstream = Upstream::scripts([failure(500)]);
        let twice = [candidate.clone(), candidate];
        let service = ModelFallbackLayer::new(twice).layer(upstream.clone());

        service.oneshot(prompt("m")).await.unwrap();

        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_callers_run_id_reaches_nobody_who_is_not_trusted() {
    let upstream = Upstream::scripts([failure(500)]);
    let candidates = [Candidate::new("a"), at("b", "http://b.test/v1")];
    let service = ModelFallbackLayer::new(candidates).layer(upstream.clone());
    let mut request = prompt("a");
    let id = HeaderValue::from_static("callers");
    request.headers_mut().insert("x-run-id", id);

    service.oneshot(request).await.unwrap();

    assert_eq!(upstream.models(), ["a", "b"]);
    assert_eq!(upstream.header("x-run-id"), [None, None]);
}
