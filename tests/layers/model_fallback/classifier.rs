//! Rules of the program's own go before what is known of the providers.
//!
//! covers: F3

use std::sync::{Arc, Mutex};

use tokio::time::advance;
use tower::{Layer, ServiceExt};
use tower_agent::{
    Cooldowns, ModelFallbackLayer, RetryBudgetLayer, TerminalReason,
    llm::failure::{Classifier, FailureClass},
};

use super::{asks, failed, models, of_account};
use crate::support::{
    PRELUDE, Place, ReadExt, Script, Stack, StackService, Upstream, chat, failure, healthy,
    no_delay, prompt, run_on, secs, tries,
};

const DAY: u64 = 24 * 3600;

/// What says so is of this class.
fn ruled(word: &'static str, class: FailureClass) -> Classifier {
    Classifier::new().rule(move |answered| {
        let body = String::from_utf8_lossy(answered.body);
        body.contains(word).then_some(class)
    })
}

/// Repeats alone, fallback alone, and both; the candidates are of two accounts.
fn services(classifier: &Classifier, upstream: &Upstream) -> [StackService; 3] {
    let candidates = [of_account("a", "one"), of_account("b", "two")];
    // Each stack has cooldowns of its own, and so learns nothing from the other.
    let fallback = || {
        ModelFallbackLayer::new(candidates.clone())
            .cooldowns(Cooldowns::new())
            .classifier(classifier.clone())
    };
    let repeats = RetryBudgetLayer::new(no_delay()).classifier(classifier.clone());
    let repeats = Stack::default().layer(Place::Retry, repeats);
    let alone = Stack::default().layer(Place::Fallback, fallback());
    let nested = repeats.clone().layer(Place::Fallback, fallback());
    [repeats, alone, nested].map(|stack| stack.build(upstream))
}

/// Answers that say "odd": an error, an error under a good status, a good
/// answer, and an event in a stream.
fn odd() -> [Script; 4] {
    let event = "data: {\"error\":{\"message\":\"odd\",\"type\":\"x\"}}\n\n";
    [
        Script::answer(400, r#"{"error":{"message":"odd","type":"x"}}"#),
        Script::answer(200, r#"{"error":{"message":"odd","type":"x"}}"#),
        Script::answer(200, r#"{"choices":[],"note":"odd"}"#),
        Script::sse().data(PRELUDE).data(event),
    ]
}

#[tokio::test(start_paused = true)]
async fn whether_the_same_one_is_asked_again() {
    for (class, repeats) in [
        (FailureClass::Server, true),
        (FailureClass::RateLimit, true),
        (FailureClass::ModelFault, true),
        (FailureClass::Auth, false),
        (FailureClass::Caller, false),
    ] {
        for script in odd() {
            let upstream = Upstream::scripts([script.clone(), healthy()]);
            let [service, ..] = services(&ruled("odd", class), &upstream);

            let answer = service.oneshot(prompt("a")).await.unwrap();

            let expected = if repeats { 2 } else { 1 };
            assert_eq!(upstream.calls(), expected, "{class} {script:?}");
            let reason = upstream.reasons()[0].clone();
            assert!(!repeats || reason == failed(class), "{reason:?}");
            drop(answer);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn which_other_one_is_asked() {
    for (class, nested, moves) in [
        (FailureClass::ModelGone, 1, true),
        (FailureClass::Auth, 1, true),
        (FailureClass::RequestLimit, 1, true),
        (FailureClass::Server, 2, true),
        (FailureClass::Caller, 1, false),
        (FailureClass::ContentFilter, 1, false),
        (FailureClass::Conflict, 2, false),
    ] {
        for script in odd() {
            let upstream = Upstream::script(healthy());
            let [_, alone, both] = services(&ruled("odd", class), &upstream);
            upstream.play("a", script.clone());
            let mut expected = vec!["a"];
            expected.extend(moves.then_some("b"));

            let asked = asks(&alone, &upstream, prompt("a")).await;
            assert_eq!(asked, expected, "{class} {script:?}");

            let asked = asks(&both, &upstream, prompt("a")).await;
            let expected = vec!["a"; nested - 1].into_iter().chain(expected);
            assert_eq!(asked, expected.collect::<Vec<_>>(), "{class} {script:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn for_how_long_it_is_left_alone() {
    for (class, seconds) in [
        (FailureClass::Server, 30),
        (FailureClass::ModelGone, 600),
        (FailureClass::Auth, 600),
        (FailureClass::Quota, 5 * 3600),
        (FailureClass::RequestLimit, 0),
        (FailureClass::ModelFault, 0),
    ] {
        for script in odd() {
            for which in [1, 2] {
                let upstream = Upstream::script(healthy());
                let service = services(&ruled("odd", class), &upstream)[which].clone();
                upstream.play("a", script.clone());
                let ask = || asks(&service, &upstream, prompt("a"));
                ask().await;
                upstream.play("a", healthy());
                if seconds > 0 {
                    assert_eq!(ask().await, ["b"], "{class} {which} {script:?}");
                    // Nobody has asked since, so that the end alone counts.
                    advance(secs(seconds)).await;
                }
                assert_eq!(ask().await, ["a"], "{class} {which} {script:?}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_we_would_leave_alone_is_not_if_the_rule_says_so() {
    for script in [
        failure(500),
        failure(401),
        Script::error_code(429, "insufficient_quota"),
        Script::sse().data("data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\"}}\n\n"),
    ] {
        for which in [1, 2] {
            let upstream = Upstream::script(healthy());
            let classifier = ruled("\"no\"", FailureClass::RequestLimit);
            let service = services(&classifier, &upstream)[which].clone();
            upstream.play("a", script.clone());

            for _ in 0..2 {
                assert_eq!(asks(&service, &upstream, prompt("a")).await, ["a", "b"]);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_event_after_the_commit_leaves_alone_as_its_class_says() {
    let event = "data: {\"error\":{\"message\":\"odd\",\"type\":\"x\"}}\n\n";
    for which in [1, 2] {
        for (class, seconds) in [
            (FailureClass::Caller, 0),
            (FailureClass::Quota, 5 * 3600),
            (FailureClass::Server, 30),
        ] {
            let upstream = Upstream::script(healthy());
            let service = services(&ruled("odd", class), &upstream)[which].clone();
            upstream.play("a", Script::sse().data(chat("a")).data(event));
            let ask = || asks(&service, &upstream, prompt("a"));

            assert_eq!(ask().await, ["a"]);

            upstream.play("a", healthy());
            if seconds > 0 {
                assert_eq!(ask().await, ["b"], "{class} {which}");
                advance(secs(seconds)).await;
            }
            assert_eq!(ask().await, ["a"], "{class} {which}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_rule_sees_the_status_the_headers_and_the_error() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let classifier = Classifier::new().rule(move |answered| {
        let header = answered.headers.get("x-gateway");
        noted.lock().unwrap().push((
            answered.status.map(|status| status.as_u16()),
            header.map(|value| value.to_str().unwrap().to_owned()),
            answered.error.message.clone(),
        ));
        None
    });
    let odd = Script::answer(418, r#"{"error":{"message":"odd","type":"x"}}"#);
    let event = "data: {\"error\":{\"message\":\"event\",\"type\":\"x\"}}\n\n";
    let upstream = Upstream::scripts([odd.header("x-gateway", "g"), Script::sse().data(event)]);
    let [service, ..] = services(&classifier, &upstream);

    for _ in 0..2 {
        asks(&service, &upstream, prompt("a")).await;
    }

    let seen = seen.lock().unwrap();
    let answer = (Some(418), Some("g".to_owned()), "odd".to_owned());
    assert_eq!(seen[..2], [answer, (None, None, "event".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn the_first_rule_that_answers_is_final_and_others_are_judged_as_ever() {
    let classifier = ruled("odd", FailureClass::Quota).rule(|answered| {
        let body = String::from_utf8_lossy(answered.body);
        body.contains("o").then_some(FailureClass::Caller)
    });
    for (body, class, calls) in [
        ("odd", FailureClass::Quota, 2),
        ("so", FailureClass::Caller, 1),
        ("x", FailureClass::Server, 2),
    ] {
        let upstream = Upstream::script(Script::answer(500, body));
        let [_, service, _] = services(&classifier, &upstream);

        let answer = service.oneshot(prompt("a")).await.unwrap();

        assert_eq!(upstream.calls(), calls, "{body}");
        assert!(tries(&answer).iter().all(|(_, told)| *told == class));
        let run = run_on(&answer);
        assert_eq!(answer.into_body().read().await.whole(), body);
        assert_eq!(run.terminal_reason(), Some(TerminalReason::Failed(class)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_rules_class_asks_for_a_wait_as_any_other() {
    let upstream = Upstream::script(healthy());
    let [_, service, _] = services(&ruled("odd", FailureClass::RateLimit), &upstream);
    let limited = Script::answer(400, r#"{"error":{"message":"odd","type":"x"}}"#);
    upstream.play("a", limited.header("retry-after", "100000"));
    let ask = || asks(&service, &upstream, prompt("a"));

    assert_eq!(ask().await, ["a", "b"]);
    upstream.play("a", healthy());

    advance(secs(DAY) - secs(121)).await;
    assert_eq!(ask().await, ["b"]);
    advance(secs(121)).await;
    assert_eq!(ask().await, ["a"]);
}

/// It is asked when a body is dropped, and a panic in a drop may take the
/// process along.
#[tokio::test(start_paused = true)]
async fn a_rule_that_panics_after_the_commit_takes_nobody_along() {
    let classifier = Classifier::new().rule(|answered| {
        assert!(answered.status.is_some(), "a rule that knows no events");
        None
    });
    let event = "data: {\"error\":{\"message\":\"no\",\"type\":\"server_error\"}}\n\n";
    let text = [chat("a"), event.to_owned()].concat();
    let upstream = Upstream::script(Script::sse().data(&text));
    let cooldowns = Cooldowns::new();
    let layer = models(["a"]).classifier(classifier);
    let service = layer.cooldowns(cooldowns.clone()).layer(upstream);

    let answer = service.oneshot(prompt("a")).await.unwrap();

    assert_eq!(answer.into_body().read().await.whole(), text);
    assert_eq!(cooldowns.len(), 1, "as what it was judged without the rule");
}
