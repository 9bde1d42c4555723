//! What is logged when a call moves on.
//!
//! covers: F13

use http::Request;
use http_body_util::Full;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, Cooldowns, ModelFallbackLayer, RetryBudget, RetryBudgetLayer, Run, RunRegistry,
    TerminalReason,
};

use super::{asks, models, of_account};
use crate::support::{
    LogCapture, Place, Script, Stack, Upstream, failure, healthy, later, no_delay, prompt,
    prompt_as,
};

/// From whom, to whom, and why.
fn steps(heard: &LogCapture) -> Vec<[String; 3]> {
    let events = heard.events("falling back");
    let steps = events
        .iter()
        .map(|event| ["from", "to", "why"].map(|field| event[field].clone()));
    steps.collect()
}

fn denials(heard: &LogCapture) -> Vec<String> {
    let events = heard.events("no further attempt");
    events.iter().map(|event| event["denied"].clone()).collect()
}

/// covers: H10
#[tokio::test(start_paused = true)]
async fn each_step_is_one_event_that_says_what_was_asked_for_and_what_is_asked() {
    let candidates = [
        Candidate::new("gpt-1").name("large"),
        Candidate::new("gpt-2").name("medium"),
        Candidate::new("gpt-3"),
    ];
    let upstream = Upstream::scripts([failure(500), failure(429), healthy()]);
    let stack = Stack::default().fallback(candidates).build(&upstream);
    let heard = LogCapture::start();
    let run = Run::open();

    let request = run.attach(prompt("large"));
    let outcome = stack.ask(request).await;

    assert_eq!(outcome.headers["x-served-model"], "gpt-3");
    let events = heard.events("falling back");
    let [first, second] = &events[..] else {
        panic!("{events:?}")
    };
    for (event, from, to, why, model) in [
        (first, "large", "medium", "server", "gpt-2"),
        (second, "medium", "gpt-3", "rate_limit", "gpt-3"),
    ] {
        assert_eq!(event["level"], "INFO");
        assert_eq!(event["run"], run.id().to_string());
        assert_eq!([&event["from"], &event["to"]], [from, to]);
        assert_eq!(event["why"], why);
        assert_eq!(event["gen_ai.original.model"], "large");
        assert_eq!(event["gen_ai.request.model"], model);
    }
    outcome.whole();
    assert_eq!(heard.events("falling back").len(), 2);
    assert!(denials(&heard).is_empty());
}

/// The row that somebody who disagrees overrides.
///
/// covers: H15
#[tokio::test(start_paused = true)]
async fn each_step_and_the_end_of_a_chain_name_the_signal_that_decided() {
    let upstream = Upstream::scripts([
        Script::error_code(429, "insufficient_quota"),
        failure(503),
        Script::answer(400, r#"{"error":{"message":"prompt is too long: 9 > 8"}}"#),
    ]);
    let candidates = ["a", "b", "c"].map(|name| Candidate::new(name).credential(name));
    let stack = Stack::default().fallback(candidates).build(&upstream);
    let heard = LogCapture::start();

    let outcome = stack.ask(prompt("a")).await;

    assert_eq!(outcome.status, 400);
    let steps = heard.events("falling back");
    let signals: Vec<_> = steps.iter().map(|event| &*event["signal"]).collect();
    assert_eq!(signals, ["insufficient_quota", "status 503"]);
    let [stopped] = &heard.events("no further attempt")[..] else {
        panic!("{:?}", heard.events("no further attempt"))
    };
    assert_eq!(stopped["signal"], "prompt is too long");
    assert_eq!(stopped["class"], "context_overflow");
}

#[tokio::test(start_paused = true)]
async fn a_stall_has_the_name_of_its_reason_whether_the_answer_streams_or_not() {
    for stream in [true, false] {
        let upstream = Upstream::script(Script::before_head().never());
        let stack = Stack::default().fallback(["a", "b"].map(Candidate::new));
        let stack = stack.attempt_step(10).build(&upstream);
        let heard = LogCapture::start();

        let outcome = stack.ask(prompt_as("a", stream)).await;

        assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
        let name = TerminalReason::StepTimeout;
        let name = name.as_str();
        assert_eq!(steps(&heard), [["a", "b", name]], "stream: {stream}");
        let [stopped] = &heard.events("no further attempt")[..] else {
            panic!("{:?}", heard.events("no further attempt"))
        };
        assert_eq!(stopped["class"], name);
        let expected = format!("\"a\" {name}, \"b\" {name}");
        assert_eq!(stopped["tried"], expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_names_no_model_says_none() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = models(["a", "b"]).layer(upstream);
    let heard = LogCapture::start();

    let request = prompt("a").map(|_| Full::from("{}"));
    service.oneshot(request).await.unwrap();

    let event = &heard.events("falling back")[0];
    assert!(!event.contains_key("gen_ai.original.model"));
    assert_eq!(event["gen_ai.request.model"], "b");
}

#[tokio::test(start_paused = true)]
async fn a_repeat_is_none() {
    let heard = LogCapture::start();
    let upstream = Upstream::script(failure(500));
    let repeats = RetryBudgetLayer::new(no_delay().max_attempts_per_candidate(3));
    let alone = repeats.layer(upstream.clone());
    asks(&alone, &upstream, prompt("a")).await;
    assert_eq!(steps(&heard), [[""; 3]; 0]);

    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]))
        .layer(repeats)
        .service(upstream.clone());
    asks(&service, &upstream, prompt("a")).await;

    assert_eq!(upstream.calls(), 9);
    assert_eq!(steps(&heard), [["a", "b", "server"]]);
    assert_eq!(denials(&heard), ["spent", "no_candidate"], "once a call");
}

#[tokio::test(start_paused = true)]
async fn nothing_happens_where_the_first_serves_or_nobody_may_follow() {
    let heard = LogCapture::start();
    let upstream = Upstream::script(healthy());
    let refuses = RetryBudget::new().before_attempt(|_| false);
    let plain = models(["a", "b"]).layer(upstream.clone());
    let refused = models(["a", "b"]).budget(refuses).layer(upstream.clone());
    let ask = async |service| asks(service, &upstream, prompt("a")).await;

    assert_eq!(ask(&plain).await, ["a"]);
    upstream.play("a", failure(400));
    assert_eq!(ask(&plain).await, ["a"]);
    upstream.play("a", failure(500));
    assert_eq!(ask(&refused).await, ["a"]);

    assert_eq!(steps(&heard), [[""; 3]; 0]);
    assert_eq!(denials(&heard), ["class", "hook"]);
}

#[tokio::test(start_paused = true)]
async fn who_is_left_alone_is_passed_in_one_step() {
    let candidates = ["a", "b", "c"].map(|name| of_account(name, name));
    let upstream = Upstream::script(healthy());
    let layer = ModelFallbackLayer::new(candidates).cooldowns(Cooldowns::new());
    let service = layer.layer(upstream.clone());
    let ask = |model| asks(&service, &upstream, prompt(model));
    upstream.play("a", failure(401));
    assert_eq!(ask("a").await, ["a", "b"]);
    upstream.play("b", failure(500));

    let heard = LogCapture::start();
    // Passed at the start, and b fails.
    assert_eq!(ask("a").await, ["b", "c"]);
    assert_eq!(
        steps(&heard),
        [["a", "b", "cooldown"], ["b", "c", "server"]]
    );
    let event = &heard.events("falling back")[0];
    assert_eq!(event["gen_ai.original.model"], "a");
    assert_eq!(event["gen_ai.request.model"], "b");

    let heard = LogCapture::start();
    // Two are passed at once.
    assert_eq!(ask("a").await, ["c"]);
    assert_eq!(steps(&heard), [["a", "c", "cooldown"]]);
    assert!(denials(&heard).is_empty());

    let heard = LogCapture::start();
    // Nobody is passed: the one it names is there.
    assert_eq!(ask("c").await, ["c"]);
    assert!(steps(&heard).is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_is_passed_after_a_failure_is_part_of_that_step() {
    let upstream = Upstream::script(healthy());
    let layer = models(["a", "b", "c"]).cooldowns(Cooldowns::new());
    let service = layer.layer(upstream.clone());
    let ask = |model| asks(&service, &upstream, prompt(model));
    upstream.play("b", failure(500));
    assert_eq!(ask("b").await, ["b", "a"]);
    upstream.play("a", failure(500));
    let heard = LogCapture::start();

    assert_eq!(ask("a").await, ["a", "c"]);

    assert_eq!(steps(&heard), [["a", "c", "server"]]);
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_stops_because_the_others_are_left_alone_says_so() {
    let upstream = Upstream::script(healthy());
    let layer = models(["a", "b"]).cooldowns(Cooldowns::new());
    let service = layer.layer(upstream.clone());
    let ask = |model| asks(&service, &upstream, prompt(model));
    upstream.play("b", failure(500));
    assert_eq!(ask("b").await, ["b", "a"]);
    upstream.play("a", failure(500));
    let heard = LogCapture::start();

    assert_eq!(ask("a").await, ["a"]);
    assert_eq!(denials(&heard), ["cooldown"]);

    let run = Run::open();
    let request = run.attach(prompt("a"));
    assert!(service.clone().oneshot(request).await.is_err());
    assert_eq!(upstream.calls(), 3);
    assert!(steps(&heard).is_empty());
    let stopped = heard.events("no further attempt");
    let [_, stopped] = &stopped[..] else {
        panic!("{stopped:?}")
    };
    assert_eq!(stopped["denied"], "cooldown");
    assert_eq!(stopped["level"], "WARN");
    assert_eq!(stopped["run"], run.id().to_string());
    assert_eq!(
        stopped["cooling"],
        "every candidate is left alone after a failure: \"a\" for 30 s more (server), \
         \"b\" for 30 s more (server)"
    );
}

#[tokio::test(start_paused = true)]
async fn a_session_that_stays_takes_no_step() {
    let upstream = Upstream::script(healthy());
    let stack = Stack::default()
        .run(&RunRegistry::new())
        .layer(Place::Fallback, models(["a", "b"]).sticky(true))
        .build(&upstream);
    let of_session = || {
        let mut request: Request<Full<_>> = prompt("a");
        let session = http::HeaderValue::from_static("s");
        request.headers_mut().insert("x-session-id", session);
        request
    };
    upstream.play("a", failure(500));
    let heard = LogCapture::start();

    asks(&stack, &upstream, of_session()).await;
    let outcome = stack.ask(of_session()).await;

    assert_eq!(outcome.headers["x-served-model"], "b");
    assert_eq!(upstream.models(), ["a", "b", "b"]);
    assert_eq!(steps(&heard), [["a", "b", "server"]]);
}

/// covers: F1
#[tokio::test(start_paused = true)]
async fn of_a_run_that_is_over_nothing_is_said() {
    let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
    let layer = models(["a", "b"]).cooldowns(Cooldowns::new());
    let service = layer.layer(upstream.clone());
    let run = Run::open();
    let request = run.attach(prompt("a"));
    let heard = LogCapture::start();
    let ended = later(1, move || run.end(TerminalReason::Aborted));

    let answer = service.oneshot(request).await;

    assert!(ended.await.unwrap() && answer.is_err());
    assert_eq!(upstream.calls(), 1);
    assert!(steps(&heard).is_empty());
    assert!(denials(&heard).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_a_caller_calls_its_model_is_cut_in_the_log() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = models(["a", "b"]).layer(upstream);
    let heard = LogCapture::start();

    let name = "\u{e9}".repeat(100_000);
    service.oneshot(prompt(&name)).await.unwrap();

    let step = &heard.events("falling back")[0];
    let logged = &step["gen_ai.original.model"];
    assert_eq!(logged.chars().filter(|it| *it == '\u{e9}').count(), 256);
}
