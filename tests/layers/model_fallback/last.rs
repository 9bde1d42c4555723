//! The last candidate, and what is told when all have failed.
//!
//! covers: F9

use std::sync::{Arc, Mutex};

use http::Request;
use tokio::time::advance;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_agent::{
    Candidate, Cooldowns, HardCeilingLayer, ModelFallbackLayer, ReplayBody, RetryBudgetLayer, Run,
    StepTimeoutLayer, TerminalReason, TerminalResponseLayer, attempt::FailedAttempts,
    llm::failure::FailureClass,
};

use super::{asks, models, of_account};
use crate::support::{
    ERROR, PRELUDE, ReadExt, Script, Upstream, UpstreamBody, attach, chat, failure, healthy, later,
    no_delay, prompt, run_on, secs, tries,
};

type Finals = Arc<Mutex<Vec<bool>>>;

/// An upstream, and what each attempt is told of itself.
fn told(
    upstream: &Upstream,
) -> (
    Finals,
    tower::util::BoxCloneService<
        Request<ReplayBody>,
        http::Response<UpstreamBody>,
        tower_agent::BoxError,
    >,
) {
    let finals = Finals::default();
    let (noted, upstream) = (Arc::clone(&finals), upstream.clone());
    let service = service_fn(move |request: Request<ReplayBody>| {
        let run = request.extensions().get::<Run>().unwrap();
        noted.lock().unwrap().push(run.is_final_attempt());
        upstream.clone().oneshot(request)
    });
    (finals, service.boxed_clone())
}

#[tokio::test(start_paused = true)]
async fn each_attempt_knows_whether_another_candidate_follows() {
    for (names, asked) in [
        (["a", "b", "c"], vec![false, false, true]),
        (["a", "a", "b"], vec![false, true]),
    ] {
        let upstream = Upstream::script(failure(500));
        let (finals, service) = told(&upstream);
        let service = models(names).layer(service);

        asks(&service, &upstream, prompt("a")).await;

        assert_eq!(*finals.lock().unwrap(), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn repeats_of_a_candidate_know_it_too() {
    let upstream = Upstream::script(failure(500));
    let (finals, service) = told(&upstream);
    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(service);

    asks(&service, &upstream, prompt("a")).await;

    assert_eq!(upstream.models(), ["a", "a", "b", "b"]);
    assert_eq!(*finals.lock().unwrap(), [false, false, true, true]);
}

#[tokio::test(start_paused = true)]
async fn without_candidates_each_is_the_last() {
    let upstream = Upstream::script(failure(500));
    let (finals, service) = told(&upstream);

    let repeats = RetryBudgetLayer::new(no_delay()).layer(service.clone());
    asks(&repeats, &upstream, prompt("a")).await;
    let plain = models([]).layer(service);
    asks(&plain, &upstream, prompt("a")).await;

    assert_eq!(*finals.lock().unwrap(), [true, true, true]);
    assert!(Run::open().is_final_attempt());
}

#[tokio::test(start_paused = true)]
async fn one_that_is_left_alone_does_not_follow() {
    let upstream = Upstream::script(healthy());
    let (finals, service) = told(&upstream);
    let layer = models(["a", "b"]).cooldowns(Cooldowns::new());
    let service = layer.layer(service);
    upstream.play("b", failure(500));
    asks(&service, &upstream, prompt("b")).await;
    asks(&service, &upstream, prompt("a")).await;
    advance(secs(30)).await;

    asks(&service, &upstream, prompt("a")).await;

    assert_eq!(upstream.models(), ["b", "a", "a", "a"]);
    assert_eq!(*finals.lock().unwrap(), [false, true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_overloaded_is_repeated_only_while_nobody_else_can_serve() {
    let upstream = Upstream::script(healthy());
    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]).cooldowns(Cooldowns::new()))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());
    let ask = |model| asks(&service, &upstream, prompt(model));
    upstream.play("b", Script::before_head().fail("reset"));
    assert_eq!(ask("b").await, ["b", "b", "a"]);

    upstream.play("a", failure(529));
    assert_eq!(ask("a").await, ["a", "a"]);

    upstream.play("b", healthy());
    advance(secs(30)).await;
    assert_eq!(ask("a").await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_left_alone_gets_no_share_of_the_time() {
    let upstream = Upstream::script(healthy());
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(30)))
        .layer(models(["a", "b", "c"]).cooldowns(Cooldowns::new()))
        .service(upstream.clone());
    upstream.play("b", failure(500));
    asks(&service, &upstream, prompt("b")).await;
    upstream.play("a", Script::before_head().never());
    let start = tokio::time::Instant::now();

    let asked = asks(&service, &upstream, prompt("a")).await;

    assert_eq!(asked, ["a", "c"]);
    assert_eq!(start.elapsed(), secs(15), "a half, not a third");
}

#[tokio::test(start_paused = true)]
async fn when_all_have_failed_the_summary_says_who_and_until_when() {
    let upstream = Upstream::script(healthy());
    let layer = [
        of_account("a", "one"),
        of_account("b", "two"),
        of_account("c", "three"),
    ];
    let layer = ModelFallbackLayer::new(layer).cooldowns(Cooldowns::new());
    let service = layer.layer(upstream.clone());
    upstream.play("a", Script::error_code(401, "invalid_api_key"));
    upstream.play("b", failure(429).header("retry-after", "45"));
    let last = failure(503).header("x-request-id", "r");
    upstream.play("c", last.header("retry-after", "100"));

    let answer = service.oneshot(prompt("a")).await.unwrap();

    assert_eq!(answer.status(), 503);
    assert_eq!(answer.headers()["x-request-id"], "r");
    assert_eq!(answer.headers()["retry-after"], "100");
    let named = |name: &str, class| (Some(name.to_owned()), class);
    let expected = [
        named("a", FailureClass::Auth),
        named("b", FailureClass::RateLimit),
        named("c", FailureClass::Server),
    ];
    assert_eq!(tries(&answer), expected);
    let soonest = answer
        .extensions()
        .get::<FailedAttempts>()
        .unwrap()
        .soonest();
    assert_eq!(soonest, Some(secs(45)));
    let run = run_on(&answer);
    assert_eq!(answer.into_body().read().await.whole(), ERROR);
    let server = TerminalReason::Failed(FailureClass::Server);
    assert_eq!(run.terminal_reason(), Some(server));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn repeats_inside_and_those_who_were_skipped_are_in_it() {
    let upstream = Upstream::script(healthy());
    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]).cooldowns(Cooldowns::new()))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());
    upstream.play("a", failure(500));
    asks(&service, &upstream, prompt("a")).await;
    advance(secs(10)).await;
    upstream.play("b", failure(400));

    let answer = service.clone().oneshot(prompt("a")).await.unwrap();

    assert_eq!(answer.status(), 400);
    let told = answer.extensions().get::<FailedAttempts>().unwrap();
    let names: Vec<_> = told
        .all()
        .iter()
        .map(|it| it.candidate.as_deref())
        .collect();
    assert_eq!(names, [Some("b")]);
    assert_eq!(told.soonest(), Some(secs(20)));
    drop(answer);

    upstream.play("b", failure(500));
    let answer = service.oneshot(prompt("a")).await.unwrap();
    let told = answer.extensions().get::<FailedAttempts>().unwrap();
    assert_eq!(told.all().len(), 2);
    assert_eq!(told.soonest(), Some(secs(20)));
}

#[tokio::test(start_paused = true)]
async fn without_cooldowns_nobody_is_waited_for() {
    let upstream = Upstream::script(failure(500));
    let service = models(["a", "b"]).layer(upstream.clone());

    let answer = service.oneshot(prompt("a")).await.unwrap();

    assert_eq!(
        answer
            .extensions()
            .get::<FailedAttempts>()
            .unwrap()
            .soonest(),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_candidate_is_known_by_its_attempt() {
    let upstream = Upstream::script(failure(500));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (noted, inner) = (Arc::clone(&seen), upstream.clone());
    let service = service_fn(move |request: Request<ReplayBody>| {
        let candidate = Candidate::of(&request).unwrap().label().to_owned();
        noted.lock().unwrap().push(candidate);
        inner.clone().oneshot(request)
    });

    asks(&models(["a", "b"]).layer(service), &upstream, prompt("b")).await;

    assert_eq!(*seen.lock().unwrap(), ["b", "a"]);
}

/// The fields of each failed attempt: candidate, status, message and request id.
fn described(tries: &FailedAttempts) -> Vec<[String; 4]> {
    let text = |part: Option<&str>| part.unwrap_or("-").to_owned();
    let tried = tries.all().iter().map(|tried| {
        [
            text(tried.candidate.as_deref()),
            text(
                tried
                    .status
                    .map(|status| status.as_str().to_owned())
                    .as_deref(),
            ),
            tried.message.clone(),
            text(tried.request_id.as_deref()),
        ]
    });
    tried.collect()
}

fn refused(status: u16, id: &'static str) -> Script {
    let words = format!(r#"{{"error":{{"message":"no {}"}}}}"#, "x".repeat(500));
    Script::answer(status, words).header("request-id", id)
}

#[tokio::test(start_paused = true)]
async fn a_good_answer_carries_those_that_failed_before_it() {
    let upstream = Upstream::script(healthy());
    let service = ServiceBuilder::new()
        .layer(models(["a", "b", "c"]))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());
    upstream.play("a", refused(410, "r-1").delayed(3));
    upstream.play("b", failure(500));

    let answer = service.clone().oneshot(prompt("a")).await.unwrap();

    assert_eq!(answer.status(), 200);
    let told = answer.extensions().get::<FailedAttempts>().unwrap();
    let words = format!("no {}", "x".repeat(253));
    let a = ["a", "410", &words, "r-1"].map(str::to_owned);
    let b = ["b", "500", "", "-"].map(str::to_owned);
    assert_eq!(described(told)[0], a);
    assert_eq!(described(told)[1][..2], b[..2]);
    assert_eq!(told.all().len(), 3, "both attempts at b");
    assert_eq!(told.all()[0].duration, secs(3));
    assert_eq!(told.all()[0].usage, None);

    upstream.play("a", healthy());
    let answer = service.oneshot(prompt("a")).await.unwrap();
    assert!(
        answer.extensions().get::<FailedAttempts>().is_none(),
        "none failed"
    );
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_call_without_an_answer_carries_them_once() {
    let upstream = Upstream::script(Script::before_head().fail("reset by peer"));
    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());
    upstream.play("a", refused(410, "r-1"));

    let error = service.oneshot(prompt("a")).await.unwrap_err();

    let told = described(FailedAttempts::find(&*error).unwrap());
    let names: Vec<_> = told.iter().map(|tried| &*tried[0]).collect();
    assert_eq!(names, ["a", "b", "b"]);
    assert_eq!(told[2][1..3], ["-", "reset by peer"]);
    let text = error.to_string();
    let expected = "failed attempts: \"a\" model_gone 410, \"b\" transport, \"b\" transport; \
                    none followed: spent, no_candidate";
    assert_eq!(text, expected);
    let source = error.source().unwrap();
    assert_eq!(source.to_string(), "reset by peer");
    assert!(source.is::<std::io::Error>(), "{source:?}");
}

#[tokio::test(start_paused = true)]
async fn so_does_the_error_of_a_call_that_was_ended() {
    let upstream = Upstream::script(Script::before_head().never());
    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());
    upstream.play("a", failure(500));
    let run = Run::open();
    let (request, _call) = attach(&run, prompt("a"));
    later(9, move || run.end(TerminalReason::Aborted));

    let error = service.oneshot(request).await.unwrap_err();

    let end = tower_agent::Terminated::find(&*error).unwrap();
    assert_eq!(end.reason, TerminalReason::Aborted);
    let told = described(FailedAttempts::find(&*error).unwrap());
    let names: Vec<_> = told.iter().map(|tried| &*tried[0]).collect();
    assert_eq!(names, ["a", "a"]);
}

fn names(tries: &FailedAttempts) -> Vec<String> {
    let described = described(tries).into_iter();
    described.map(|[name, ..]| name).collect()
}

/// covers: H5
#[tokio::test(start_paused = true)]
async fn the_end_by_a_layer_further_out_carries_them() {
    let upstream = Upstream::script(Script::before_head().never());
    upstream.play("a", failure(500));
    let tries = ServiceBuilder::new()
        .layer(models(["a", "b"]))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream.clone());
    let ceiling = HardCeilingLayer::new(secs(9)).layer(tries.clone());
    let step = StepTimeoutLayer::new(secs(9)).layer(tries.clone());

    for error in [
        ceiling.oneshot(prompt("a")).await.unwrap_err(),
        step.oneshot(prompt("a")).await.unwrap_err(),
    ] {
        assert!(tower_agent::Terminated::find(&*error).is_some());
        assert_eq!(names(FailedAttempts::find(&*error).unwrap()), ["a", "a"]);
    }

    let answers = ServiceBuilder::new()
        .layer(TerminalResponseLayer::new())
        .layer(HardCeilingLayer::new(secs(9)))
        .service(tries);
    let answer = answers.oneshot(prompt("a")).await.unwrap();
    assert_eq!(answer.status(), 504);
    assert_eq!(names(answer.extensions().get().unwrap()), ["a", "a"]);
}

#[tokio::test(start_paused = true)]
async fn so_does_the_end_of_a_stream_that_has_begun() {
    let upstream = Upstream::script(Script::sse().data(chat("x")).never());
    upstream.play("a", failure(410));
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(9)))
        .layer(models(["a", "b"]))
        .service(upstream.clone());

    let answer = service.clone().oneshot(prompt("a")).await.unwrap();
    let error = answer.into_body().read().await.end.unwrap_err();
    assert_eq!(names(FailedAttempts::find(&*error).unwrap()), ["a"]);

    let answer = service.oneshot(prompt("b")).await.unwrap();
    let error = answer.into_body().read().await.end.unwrap_err();
    assert_eq!(FailedAttempts::find(&*error), None, "none failed");
}

#[tokio::test(start_paused = true)]
async fn repeats_in_an_attempt_that_a_layer_in_between_ends_are_in_it() {
    let silent = Script::sse().data(PRELUDE).never();
    let upstream = Upstream::scripts([failure(500), silent, healthy()]);
    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]))
        .layer(HardCeilingLayer::new(secs(9)))
        .layer(RetryBudgetLayer::new(no_delay()))
        .service(upstream);

    let answer = service.oneshot(prompt("a")).await.unwrap();

    let named = |class| (Some("a".to_owned()), class);
    let expected = [named(FailureClass::Server), named(FailureClass::Deadline)];
    assert_eq!(tries(&answer), expected);
}
