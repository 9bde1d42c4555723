//! What says nothing about a candidate.

use http::Request;
use tokio::time::timeout;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    BoxError, Candidate, Cooldowns, HardCeilingLayer, ModelFallbackLayer, ReplayBody, Run,
    StepTimeoutLayer, TerminalReason,
};

use super::{asks, cooled, models};
use crate::{
    model_fallback::{both, of_account},
    support::{
        ERROR, PRELUDE, ReadExt, Script, Upstream, attach, chat, failure, healthy, later, prompt,
        prompt_as, prompt_json, reason_of, secs,
    },
};

/// An upstream that is silent at each place where a call may be cut.
fn silences() -> [Script; 4] {
    [
        Script::before_head().never(),
        Script::sse().data(PRELUDE).never(),
        Script::sse().data(chat("a")).never(),
        Script::json().data("{").never(),
    ]
}

/// covers: T62
#[tokio::test(start_paused = true)]
async fn a_caller_who_leaves() {
    for script in silences() {
        for which in 0..2 {
            let cooldowns = Cooldowns::new();
            let layer = models(["a", "b"]).cooldowns(cooldowns.clone());
            let (service, upstream) = both(&layer)[which].clone();
            upstream.play("a", script.clone());

            let asked = asks(&service, &upstream, prompt("a"));
            assert!(timeout(secs(5), asked).await.is_err());

            assert_eq!(upstream.models(), ["a"]);
            assert!(cooldowns.is_empty(), "{script:?}");
        }
    }
}

/// covers: T62
#[tokio::test(start_paused = true)]
async fn an_end_from_outside() {
    for script in silences() {
        for which in 0..2 {
            for reason in [TerminalReason::Aborted, TerminalReason::TurnCap] {
                let cooldowns = Cooldowns::new();
                let layer = models(["a", "b"]).cooldowns(cooldowns.clone());
                let (service, upstream) = both(&layer)[which].clone();
                upstream.play("a", script.clone());
                let run = Run::open();
                let ended = later(5, {
                    let (run, reason) = (run.clone(), reason.clone());
                    move || run.end(reason)
                });

                let request = run.attach(prompt("a"));
                let asked = asks(&service, &upstream, request).await;

                assert!(ended.await.unwrap());
                assert_eq!(asked, ["a"]);
                assert!(cooldowns.is_empty(), "{script:?}");
                assert_eq!(run.in_flight(), 0);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_the_call() {
    for script in silences() {
        for (ceiling, step) in [(Some(secs(5)), None), (None, Some(secs(5)))] {
            let cooldowns = Cooldowns::new();
            let upstream = Upstream::scripts([script.clone(), healthy()]);
            let service = ServiceBuilder::new()
                .layer(HardCeilingLayer::optional(ceiling))
                .layer(StepTimeoutLayer::optional(step))
                .layer(models(["a"]).cooldowns(cooldowns.clone()))
                .service(upstream.clone());

            let asked = asks(&service, &upstream, prompt("a")).await;

            assert_eq!(asked, ["a"]);
            assert!(cooldowns.is_empty(), "{script:?}");
        }
    }
}

/// covers: F2
#[tokio::test(start_paused = true)]
async fn a_ceiling_of_the_attempt_or_its_share_of_the_time() {
    for (outer, inner) in [(None, Some(secs(5))), (Some(secs(10)), None)] {
        for script in [
            Script::before_head().never(),
            Script::sse().data(PRELUDE).never(),
        ] {
            let cooldowns = Cooldowns::new();
            let upstream = Upstream::script(healthy());
            upstream.play("a", script);
            let service = ServiceBuilder::new()
                .layer(HardCeilingLayer::optional(outer))
                .layer(models(["a", "b"]).cooldowns(cooldowns.clone()))
                .layer(HardCeilingLayer::optional(inner))
                .service(upstream.clone());

            let asked = asks(&service, &upstream, prompt("a")).await;

            assert_eq!(asked, ["a", "b"]);
            assert!(cooldowns.is_empty());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_silence_of_a_call_that_does_not_stream_but_not_of_one_that_does() {
    for (stream, known) in [(false, 0), (true, 1)] {
        for which in 0..2 {
            let cooldowns = Cooldowns::new();
            let layer = models(["a", "b"]).cooldowns(cooldowns.clone());
            let (service, upstream) = both(&layer)[which].clone();
            upstream.play("a", Script::before_head().never());

            let asked = asks(&service, &upstream, prompt_as("a", stream)).await;

            assert_eq!(asked, ["a", "b"]);
            assert_eq!(cooldowns.len(), known);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_the_program_ends() {
    let cooldowns = Cooldowns::new();
    let (service, upstream) = cooled(&cooldowns, ["a", "b"].map(Candidate::new));
    upstream.play("a", Script::before_head().never());
    let ended = later(5, {
        let upstream = upstream.clone();
        move || upstream.requests()[0].run().end(TerminalReason::Aborted)
    });

    let asked = asks(&service, &upstream, prompt("a")).await;

    assert!(ended.await.unwrap());
    assert_eq!(asked, ["a", "b"]);
    assert!(cooldowns.is_empty());
}

/// covers: F8
#[tokio::test(start_paused = true)]
async fn a_request_that_is_itself_at_fault() {
    for script in [
        failure(400),
        failure(404),
        failure(408),
        failure(409),
        failure(413),
        failure(422),
        failure(424),
        Script::error_code(413, "rate_limit_exceeded"),
        Script::error_code(400, "context_length_exceeded"),
        Script::error_code(400, "content_filter"),
        Script::answer(200, r#"{"choices":[{"finish_reason":"content_filter"}]}"#),
    ] {
        for which in 0..2 {
            let cooldowns = Cooldowns::new();
            let sized = |name, tokens| of_account(name, name).context_window(tokens);
            let candidates = [sized("a", 8_000), sized("b", 100_000)];
            let layer = ModelFallbackLayer::new(candidates).cooldowns(cooldowns.clone());
            let (service, upstream) = both(&layer)[which].clone();
            upstream.play("a", script.clone());

            for _ in 0..3 {
                let asked = asks(&service, &upstream, prompt_json("a")).await;
                assert_eq!(asked[0], "a", "{script:?}");
            }

            assert!(cooldowns.is_empty(), "{script:?}");
        }
    }
}

/// covers: F1
#[tokio::test(start_paused = true)]
async fn the_word_of_a_trusted_upstream_that_the_run_is_over() {
    let run = Run::open();
    let cooldowns = Cooldowns::new();
    let candidates = [Candidate::new("a").trusted(true), Candidate::new("b")];
    let (service, upstream) = cooled(&cooldowns, candidates);
    upstream.play(
        "a",
        Script::terminated("step_timeout", &run.id().to_string()),
    );
    let (request, call) = attach(&run, prompt("a"));

    let error = service.oneshot(request).await.unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::StepTimeout));
    assert_eq!(call.terminal_reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(upstream.models(), ["a"]);
    assert!(cooldowns.is_empty());
    assert_eq!(run.in_flight(), 0);
}

/// covers: F1
#[tokio::test(start_paused = true)]
async fn an_end_that_looks_like_a_failure() {
    let answers: [fn() -> Result<http::Response<_>, BoxError>; 2] = [
        || Err("429 rate_limit_exceeded".into()),
        || {
            let answer = http::Response::builder().status(401);
            Ok(answer.body(http_body_util::Full::from(ERROR)).unwrap())
        },
    ];
    for answer in answers {
        let cooldowns = Cooldowns::new();
        let upstream = service_fn(move |request: Request<ReplayBody>| async move {
            let run = request.extensions().get::<Run>().unwrap().run();
            run.end(TerminalReason::Aborted);
            answer()
        });
        let layer = models(["a", "b"]).cooldowns(cooldowns.clone());
        let run = Run::open();

        let request = run.attach(prompt("a"));
        let error = layer.layer(upstream).oneshot(request).await.unwrap_err();

        assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
        assert!(cooldowns.is_empty());
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_handed_on_whole_though_nobody_waited_for_its_end() {
    let cooldowns = Cooldowns::new();
    let (service, upstream) = cooled(&cooldowns, ["a", "b"].map(Candidate::new));
    upstream.play("a", healthy().never());
    let answer = service.oneshot(prompt("a")).await.unwrap();
    let mut body = answer.into_body();
    for _ in 0..3 {
        body.token().await;
    }

    drop(body);

    assert!(cooldowns.is_empty());
}
