//! What one caller does must not harm another.
//!
//! covers: T64

use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Full;
use tokio::time::advance;
use tower::{BoxError, Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    Candidate, CandidateDialect, CandidateOrder, Cooldowns, ModelFallbackLayer, ReplayBody,
    RetryBudgetLayer, Run, attempt::SideEffects, llm::failure::AllCandidatesCoolingDown,
};

use super::{at, models};
use crate::support::{
    ReadExt, Script, Upstream, attach, failure, healthy, no_delay, prompt, secs, with_header,
};

fn of_program() -> Candidate {
    let candidate = at("a", "http://one.test/v1");
    candidate.api_key("program").unwrap()
}

#[tokio::test(start_paused = true)]
async fn who_chooses_an_organization_does_not_choose_it_for_the_programs_account() {
    for name in ["openai-organization", "openai-project"] {
        for (candidate, goes_along) in [(of_program(), false), (Candidate::new("a"), true)] {
            let upstream = Upstream::script(healthy());
            let layer = ModelFallbackLayer::new([candidate]);
            let service = layer.layer(upstream.clone());

            service
                .oneshot(with_header(prompt("a"), name, "org-nope"))
                .await
                .unwrap();

            assert_eq!(upstream.header(name)[0].is_some(), goes_along, "{name}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_with_a_callers_own_word_cools_nobody_elses() {
    let mut queried = prompt("a");
    *queried.uri_mut() = "/v1/chat/completions?key=bad".parse().unwrap();
    let keyed = with_header(prompt("a"), "authorization", "Bearer bad");
    let forwarding = of_program().forward_credentials(true);
    for (candidate, request) in [(of_program(), queried), (forwarding, keyed)] {
        let upstream = Upstream::scripts([failure(401), healthy()]);
        let layer = ModelFallbackLayer::new([candidate]).cooldowns(Cooldowns::new());
        let service = layer.layer(upstream.clone());

        let refused = service.clone().oneshot(request).await.unwrap();
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
        drop(refused);
        let other = service.oneshot(prompt("a")).await.unwrap();

        assert_eq!(other.status(), StatusCode::OK);
    }
}

#[tokio::test(start_paused = true)]
async fn a_firewalls_page_does_not_take_the_host_from_everybody() {
    let page =
        || Script::answer(403, "<!doctype html><p>blocked").header("content-type", "text/html");
    let told = || Script::error_code(403, "unsupported_country_region_territory");
    for (script, is_cooled) in [(page(), false), (told(), true)] {
        let upstream = Upstream::scripts([script, healthy()]);
        let service = models(["a"]).cooldowns(Cooldowns::new());
        let service = service.layer(upstream.clone());

        drop(service.clone().oneshot(prompt("a")).await.unwrap());

        assert_eq!(service.oneshot(prompt("a")).await.is_err(), is_cooled);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_layer_further_in_refuses_cools_nobody() {
    let inner = service_fn(|request: Request<ReplayBody>| async move {
        match request.headers().contains_key("x-bad") {
            true => Err::<http::Response<Full<Bytes>>, BoxError>("not you".into()),
            false => Ok(http::Response::default()),
        }
    });
    let service = models(["a", "b"]).cooldowns(Cooldowns::new()).layer(inner);

    service
        .clone()
        .oneshot(with_header(prompt("a"), "x-bad", "1"))
        .await
        .unwrap_err();

    assert!(service.oneshot(prompt("a")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_ready_cools_nobody() {
    let budget = no_delay();
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let upstream = upstream.readiness([None, Some("full".into())]);
    let cooldowns = Cooldowns::new();
    let service = ServiceBuilder::new()
        .layer(
            models(["a", "b"])
                .budget(budget)
                .cooldowns(cooldowns.clone()),
        )
        .service(upstream.clone());

    service.oneshot(prompt("a")).await.unwrap_err();

    assert_eq!(cooldowns.len(), 1, "the one that was asked");
}

#[tokio::test(start_paused = true)]
async fn a_call_for_which_nobody_was_asked_is_no_error_of_its_run() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let budget = no_delay().per_error_key(1).per_run(1);
    let layer = models(["a"]).budget(budget).cooldowns(Cooldowns::new());
    let service = layer.layer(upstream.clone());
    let run = Run::open();

    for _ in 0..5 {
        let (request, _) = attach(&run, prompt("a"));
        match service.clone().oneshot(request).await {
            Ok(answer) => drop(answer.into_body().read().await),
            Err(error) => assert!(error.is::<AllCandidatesCoolingDown>()),
        }
    }

    assert_eq!(upstream.calls(), 1);
    assert_eq!(run.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_nobody_continues_is_forgotten() {
    let upstream = Upstream::script(failure(500));
    let cooldowns = Cooldowns::new();
    let service = models(["a"]).cooldowns(cooldowns.clone());
    let service = service.layer(upstream.clone());
    let ask = || service.clone().oneshot(prompt("a"));

    drop(ask().await.unwrap());
    advance(secs(61)).await;
    drop(ask().await.unwrap());

    let error = ask()
        .await
        .unwrap_err()
        .downcast::<AllCandidatesCoolingDown>()
        .unwrap();
    assert_eq!(error.soonest(), secs(1), "the first of a new row");
    assert_eq!(cooldowns.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_run_have_marks_and_tries_of_their_own() {
    let run = Run::open();
    let on_run = |mut request: Request<Full<Bytes>>| {
        request.extensions_mut().insert(run.clone());
        request
    };
    // The marked call fails last; the other is repeated meanwhile.
    let upstream = Upstream::scripts([failure(500).delayed(5), failure(500), healthy()]);
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let mut marked = on_run(prompt("a"));
    marked.extensions_mut().insert(SideEffects);

    let first = tokio::spawn(service.clone().oneshot(marked));
    advance(secs(1)).await;
    let second = service.oneshot(on_run(prompt("a"))).await.unwrap();
    assert_eq!(second.status(), StatusCode::OK);
    second.into_body().read().await;
    let first = first.await.unwrap().unwrap();

    assert_eq!(first.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(upstream.calls(), 3, "the marked one was sent once");
}

#[tokio::test(start_paused = true)]
async fn a_list_is_for_the_layer_that_read_it_and_names_all_of_a_name() {
    let openai = Candidate::new("o")
        .name("large")
        .dialect(CandidateDialect::OpenAi);
    let anthropic = Candidate::new("c")
        .name("large")
        .dialect(CandidateDialect::Anthropic);
    let upstream = Upstream::script(healthy());
    let service = ServiceBuilder::new()
        .layer(ModelFallbackLayer::new([anthropic, openai]))
        .layer(models(["inner"]))
        .service(upstream.clone());
    let mut request = prompt("other");
    request
        .extensions_mut()
        .insert(CandidateOrder::new(["large"]));

    service.oneshot(request).await.unwrap();

    assert_eq!(upstream.models(), ["inner"]);
}
