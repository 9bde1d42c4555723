//! What must not be done twice.
//!
//! covers: F10

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    Cooldowns, ReplayBody, RetryBudgetLayer, Run, TerminalReason, attempt::SideEffects,
    llm::failure::FailureClass,
};

use super::{asks, models};
use crate::support::{
    ERROR, LogCapture, Script, StackService, Upstream, attach, failure, healthy, no_delay, prompt,
};

/// Fallback alone, repeats alone, and both. With `marks`, each attempt marks its side
/// effects.
fn services(upstream: &Upstream, marks: bool) -> [StackService; 3] {
    let inner = upstream.clone();
    let marking = service_fn(move |request: Request<ReplayBody>| {
        let run = request.extensions().get::<Run>().unwrap().clone();
        let answer = inner.clone().oneshot(request);
        async move {
            let answer = answer.await;
            if marks {
                run.mark_side_effects();
            }
            answer
        }
    });
    let repeats = RetryBudgetLayer::new(no_delay());
    [
        StackService::new(models(["a", "b"]).layer(marking.clone())),
        StackService::new(repeats.layer(marking.clone())),
        StackService::new(models(["a", "b"]).layer(repeats.layer(marking))),
    ]
}

fn marked(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    request.extensions_mut().insert(SideEffects);
    request
}

#[tokio::test(start_paused = true)]
async fn a_marked_request_is_sent_once_and_its_answer_handed_up() {
    for which in 0..3 {
        for marks in [false, true] {
            let upstream = Upstream::scripts([failure(503).header("x-request-id", "r"), healthy()]);
            let service = services(&upstream, marks)[which].clone();
            let heard = LogCapture::start();
            let run = Run::open();
            let request = match marks {
                true => prompt("a"),
                false => marked(prompt("a")),
            };
            let (request, call) = attach(&run, request);

            let outcome = service.ask(request).await;

            assert_eq!(outcome.status, 503);
            assert_eq!(outcome.headers["x-request-id"], "r");
            assert_eq!(outcome.tries.len(), 1);
            assert_eq!(outcome.whole(), ERROR);
            assert_eq!(upstream.models(), ["a"], "{which} {marks}");
            let stopped = heard.events("no further attempt");
            let [stopped] = &stopped[..] else {
                panic!("{stopped:?}")
            };
            assert_eq!(stopped["denied"], "side_effects");
            assert_eq!(stopped["class"], "server");
            assert_eq!(stopped["run"], run.id().to_string());
            assert!(heard.events("falling back").is_empty());
            assert_eq!(run.terminal_reason(), None);
            let server = TerminalReason::Failed(FailureClass::Server);
            assert_eq!(call.terminal_reason(), Some(server));
            assert_eq!(run.in_flight(), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_is_the_source_of_the_calls() {
    for which in 0..3 {
        let upstream = Upstream::scripts([Script::before_head().fail("reset"), healthy()]);
        let service = services(&upstream, false)[which].clone();

        let error = service.oneshot(marked(prompt("a"))).await;

        assert_eq!(error.unwrap_err().source().unwrap().to_string(), "reset");
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_serves_is_served() {
    for which in 0..3 {
        let upstream = Upstream::script(healthy());
        let service = services(&upstream, true)[which].clone();

        let outcome = service.ask(marked(prompt("a"))).await;

        assert_eq!(outcome.status, 200);
        outcome.whole();
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_call_of_the_run_is_not_affected() {
    for which in 0..3 {
        let upstream = Upstream::scripts([failure(500), failure(500), healthy()]);
        let [service, plain] = [true, false].map(|marks| services(&upstream, marks)[which].clone());
        let run = Run::open();
        // Also where the run itself is the node of its calls.
        let direct = |mut request: Request<Full<Bytes>>| {
            request.extensions_mut().insert(run.clone());
            request
        };

        let first = asks(&service, &upstream, run.attach(prompt("a"))).await;
        assert_eq!(first, ["a"]);
        let second = asks(&plain, &upstream, run.attach(prompt("a"))).await;
        assert_eq!(second.len(), 2);

        let upstream = Upstream::scripts([failure(500), failure(500), healthy()]);
        let [service, plain] = [true, false].map(|marks| services(&upstream, marks)[which].clone());
        let first = asks(&service, &upstream, direct(prompt("a"))).await;
        assert_eq!(first, ["a"]);
        let second = asks(&plain, &upstream, direct(prompt("a"))).await;
        assert_eq!(second.len(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_mark_on_the_first_candidate_counts_for_its_repeat_too() {
    let upstream = Upstream::scripts([failure(500), failure(500), healthy()]);
    let inner = upstream.clone();
    // The second try has an effect, and then fails.
    let marking = service_fn(move |request: Request<ReplayBody>| {
        let run = request.extensions().get::<Run>().unwrap().clone();
        let upstream = inner.clone();
        async move {
            let answer = upstream.clone().oneshot(request).await;
            if upstream.calls() == 2 {
                run.mark_side_effects();
            }
            answer
        }
    });
    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(marking);

    let answer: Response<_> = service.oneshot(prompt("a")).await.unwrap();

    assert_eq!(answer.status(), 500);
    assert_eq!(upstream.models(), ["a", "a"]);
}

#[tokio::test(start_paused = true)]
async fn the_candidate_is_left_alone_all_the_same() {
    let upstream = Upstream::script(healthy());
    upstream.play("a", failure(500));
    let layer = models(["a", "b"]).cooldowns(Cooldowns::new());
    let service = layer.layer(upstream.clone());

    let first = asks(&service, &upstream, marked(prompt("a"))).await;
    let second = asks(&service, &upstream, marked(prompt("a"))).await;

    assert_eq!([first, second], [["a"], ["b"]]);
}
