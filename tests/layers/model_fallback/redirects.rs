//! What a candidate's own upstream answers that is no answer of a model.
//!
//! covers: T47

use http::{Request, StatusCode};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, ModelFallbackLayer, RetryBudgetLayer, Run,
    llm::failure::{FailureClass, Redirected},
};

use super::{at, failed};
use crate::support::{
    Place, ReadExt, Script, Stack, Upstream, attach, failure, healthy, healthy_text, no_delay,
    prompt, prompt_json, tries,
};

const STATUSES: [u16; 7] = [101, 103, 301, 304, 307, 308, 399];

fn elsewhere(model: &str) -> Candidate {
    at(model, "http://own.example/v1")
}

fn redirect(status: u16) -> Script {
    let script = Script::json().status(status);
    script.header("location", "http://other.example/")
}

#[tokio::test(start_paused = true)]
async fn alone_it_is_an_error_and_nobody_is_asked_again() {
    for status in STATUSES {
        let upstream = Upstream::scripts([redirect(status), healthy()]);
        let service = ServiceBuilder::new()
            .layer(ModelFallbackLayer::new([elsewhere("m")]))
            .layer(RetryBudgetLayer::new(no_delay()))
            .service(upstream.clone());
        let run = Run::open();
        let (request, call) = attach(&run, prompt_json("m"));

        let error = service.oneshot(request).await.unwrap_err();

        let found: &Redirected = error.source().unwrap().downcast_ref().unwrap();
        assert_eq!(found.status, StatusCode::from_u16(status).unwrap());
        assert_eq!(upstream.calls(), 1);
        assert_eq!(upstream.reasons(), [failed(FailureClass::Redirect)]);
        assert_eq!(call.terminal_reason(), failed(FailureClass::Redirect));
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_candidate_is_asked_at_once() {
    for repeats in [false, true] {
        let upstream = Upstream::scripts([redirect(307), redirect(101), healthy()]);
        let layer = ModelFallbackLayer::new(["m", "n", "o"].map(elsewhere));
        let request = prompt("m");
        let answer = if repeats {
            let inner = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
            let answer = layer.layer(inner).oneshot(request).await.unwrap();
            let (parts, body) = answer.into_parts();
            (parts, body.read().await.whole())
        } else {
            let answer = layer
                .layer(upstream.clone())
                .oneshot(request)
                .await
                .unwrap();
            let (parts, body) = answer.into_parts();
            (parts, body.read().await.whole())
        };

        assert_eq!(answer.0.headers["x-served-model"], "o");
        assert!(!answer.0.headers.contains_key("location"));
        assert_eq!(answer.1, healthy_text());
        assert_eq!(upstream.models(), ["m", "n", "o"]);
    }
}

/// It is in the list of what failed, with its status.
#[tokio::test(start_paused = true)]
async fn the_tries_tell_of_it() {
    let upstream = Upstream::scripts([redirect(308), failure(400)]);
    let layer = ModelFallbackLayer::new(["m", "n"].map(elsewhere));
    let answer = layer.layer(upstream).oneshot(prompt_json("m")).await;
    let told = tries(&answer.unwrap());
    assert_eq!(told[0], (Some("m".to_owned()), FailureClass::Redirect));
    assert_eq!(told[1].1, FailureClass::Caller);
}

/// A layer further in knows of no candidate with a URL, and takes it for an answer.
#[tokio::test(start_paused = true)]
async fn a_layer_further_in_does_not_hand_it_past() {
    let upstream = Upstream::scripts([redirect(307), healthy()]);
    let inner = ModelFallbackLayer::new([Candidate::new("inner")]).layer(upstream.clone());
    let outer = ModelFallbackLayer::new(["m", "n"].map(elsewhere)).layer(inner);

    let answer = outer.oneshot(prompt("m")).await.unwrap();

    assert_eq!(answer.status(), 200);
    assert_eq!(upstream.calls(), 2);
}

/// Without a URL of the candidate's own the program knows where it sends what.
#[tokio::test(start_paused = true)]
async fn an_answer_of_the_programs_own_service_is_handed_on() {
    for status in STATUSES {
        let upstream = Upstream::scripts([redirect(status), healthy()]);
        let layer = ModelFallbackLayer::new(["m", "n"].map(Candidate::new));
        let answer = layer.layer(upstream.clone()).oneshot(prompt_json("m"));

        let answer = answer.await.unwrap();

        assert_eq!(answer.status(), status);
        assert_eq!(answer.headers()["location"], "http://other.example/");
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_caller_is_told_its_status_and_not_where_it_points() {
    let upstream = Upstream::script(redirect(308));
    let stack = Stack::default()
        .terminal()
        .layer(Place::Fallback, ModelFallbackLayer::new([elsewhere("m")]));
    let request: Request<_> = prompt_json("m");

    let outcome = stack.build(&upstream).ask(request).await;

    assert_eq!(outcome.status, 502);
    assert!(outcome.header("location").is_none());
    assert!(outcome.header("x-should-retry").is_none());
    let text = outcome.whole();
    assert!(text.contains("308") && !text.contains("example"), "{text}");
}
