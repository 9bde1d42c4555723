//! The hook after each attempt.
//!
//! covers: H5

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tower::{Layer, ServiceExt};
use tower_agent::{
    HardCeilingLayer, RetryBudget, RetryBudgetLayer, TerminalReason,
    attempt::{AttemptSummary, FailedAttempts},
    llm::failure::FailureClass,
};

use super::models;
use crate::support::{
    DONE, LogCapture, PRELUDE, ReadExt, Script, Stack, StackService, TOKEN, USAGE, Upstream, chat,
    failure, healthy, no_delay, prompt, prompt_as, prompt_json, secs,
};

/// What a hook was told, in order.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<AttemptSummary>>>);

impl Told {
    fn budget(&self) -> RetryBudget {
        let told = self.clone();
        no_delay().after_attempt(move |tried| told.0.lock().unwrap().push(tried.clone()))
    }

    fn all(&self) -> Vec<AttemptSummary> {
        self.0.lock().unwrap().clone()
    }

    /// Candidate and terminal reason of each.
    fn ends(&self) -> Vec<(String, TerminalReason)> {
        let end = |tried: AttemptSummary| (tried.candidate.unwrap().to_string(), tried.reason);
        self.all().into_iter().map(end).collect()
    }

    /// The only one.
    fn one(&self) -> AttemptSummary {
        let [tried] = &self.all()[..] else {
            panic!("{:?}", self.all())
        };
        tried.clone()
    }
}

/// Fallback and retry with one budget, and an attempt's window of ten seconds.
fn stack(told: &Told) -> Stack {
    let stack = Stack::default().candidates(["a", "b"]);
    stack.budget(told.budget()).attempt_step(10)
}

fn told(upstream: &Upstream) -> (Told, StackService) {
    let told = Told::default();
    let service = stack(&told).build(upstream);
    (told, service)
}

fn server(name: &str) -> (String, TerminalReason) {
    (
        name.to_owned(),
        TerminalReason::Failed(FailureClass::Server),
    )
}

#[tokio::test(start_paused = true)]
async fn it_is_called_once_for_each_repeat_and_each_candidate() {
    let upstream = Upstream::script(failure(500));
    let (told, service) = told(&upstream);

    let answer = service.oneshot(prompt("a")).await.unwrap();

    let failed = answer.extensions().get::<FailedAttempts>().unwrap();
    assert_eq!(told.all(), failed.all());
    let expected = ["a", "a", "b", "b"].map(server);
    assert_eq!(told.ends(), expected);
    assert_eq!(told.all()[0].class, Some(FailureClass::Server));
    answer.into_body().read().await.whole();
    assert_eq!(told.all().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn it_is_called_at_the_end_of_the_answer_that_serves() {
    let usage = r#"{"usage":{"prompt_tokens":7,"completion_tokens":2}}"#;
    let unary = Script::json().wait(3.0).data(usage);
    let stream = Script::sse().data(PRELUDE).data(TOKEN).wait(3.0);
    let stream = stream.data(USAGE).data(DONE);
    for (script, streams) in [(unary, false), (stream, true)] {
        let script = script.header("x-request-id", "r-1");
        let upstream = Upstream::scripts([failure(500), script]);
        let (told, service) = told(&upstream);

        let answer = service.oneshot(prompt_as("a", streams)).await.unwrap();
        assert_eq!(told.ends(), [server("a")], "not before the end");
        answer.into_body().read().await.whole();

        let [_, served] = &told.all()[..] else {
            panic!("{:?}", told.all())
        };
        assert_eq!(served.candidate.as_deref(), Some("a"));
        assert_eq!(served.reason, TerminalReason::Completed);
        assert_eq!(served.class, None);
        assert_eq!(served.status.unwrap(), 200);
        assert_eq!(served.message, "");
        assert_eq!(served.request_id.as_deref(), Some("r-1"));
        let first_content = secs(if streams { 0 } else { 3 });
        assert_eq!(served.served_after, Some(first_content));
        assert_eq!((served.duration, served.owner), (secs(3), None));
        assert_eq!(served.duration, secs(3));
        let usage = served.usage.unwrap();
        assert_eq!((usage.input_tokens, usage.output_tokens), (7, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_fails_after_its_beginning_is_told_by_its_end() {
    let fails = Script::sse().data(chat("x")).fail("reset");
    let stalls = Script::sse().data(chat("x")).never();
    let transport = TerminalReason::Failed(FailureClass::Transport);
    for (script, reason, class) in [
        (fails, transport, FailureClass::Transport),
        (
            stalls,
            TerminalReason::StepTimeout,
            FailureClass::StepTimeout,
        ),
    ] {
        let (told, service) = told(&Upstream::script(script));

        let answer = service.oneshot(prompt("a")).await.unwrap();
        assert!(answer.into_body().read().await.end.is_err());

        let tried = told.one();
        assert_eq!((tried.reason, tried.class), (reason, Some(class)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_has_reason_and_class_of_one_name() {
    for streams in [true, false] {
        let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
        let (told, service) = told(&upstream);

        service.ask(prompt_as("a", streams)).await.whole();

        let [stalled, served] = &told.all()[..] else {
            panic!("{:?}", told.all())
        };
        assert_eq!(stalled.reason, TerminalReason::StepTimeout);
        assert_eq!(stalled.class, Some(FailureClass::StepTimeout));
        assert_eq!(stalled.duration, secs(10));
        assert_eq!(served.reason, TerminalReason::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_dropped_is_told_once() {
    for script in [
        Script::before_head().never(),
        Script::sse().data(PRELUDE).never(),
        Script::json().data("{").never(),
    ] {
        let (told, service) = told(&Upstream::script(script));

        let waited = tokio::time::timeout(secs(3), service.oneshot(prompt("a"))).await;

        assert!(waited.is_err());
        let tried = told.one();
        assert_eq!((tried.reason, tried.class), (TerminalReason::Aborted, None));
        assert_eq!(tried.duration, secs(3));
    }

    let (told, service) = told(&Upstream::script(Script::sse().data(chat("x")).never()));
    let answer = service.oneshot(prompt("a")).await.unwrap();
    assert!(told.all().is_empty());
    drop(answer);
    assert_eq!(told.ends(), [("a".to_owned(), TerminalReason::Aborted)]);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_ends_with_its_call_has_the_calls_reason() {
    for script in [
        Script::before_head().never(),
        Script::sse().data(chat("x")).never(),
    ] {
        let told = Told::default();
        let stack = stack(&told).candidates(["a"]).ceiling(5);
        let service = stack.build(&Upstream::script(script));

        let outcome = service.ask(prompt("a")).await;

        assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
        let tried = told.one();
        let cut = (TerminalReason::HardCeiling, None);
        assert_eq!((tried.reason, tried.class), cut);
        assert_eq!(tried.duration, secs(5));
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_share_of_the_time_has_passed_has_failed() {
    let told = Told::default();
    let silent = Upstream::script(Script::before_head().never());
    let service = stack(&told).ceiling(5).build(&silent);

    let outcome = service.ask(prompt("a")).await;

    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
    let ends = ["a", "b"].map(|name| (name.to_owned(), TerminalReason::HardCeiling));
    assert_eq!(told.ends(), ends);
    let classes: Vec<_> = told.all().iter().map(|it| it.class).collect();
    assert_eq!(classes, [Some(FailureClass::Deadline), None]);
}

#[tokio::test(start_paused = true)]
async fn a_service_that_does_not_get_ready_is_an_attempt() {
    let upstream = Upstream::script(healthy());
    let upstream = upstream.readiness([None, Some("busy".into())]);
    let told = Told::default();
    let service = RetryBudgetLayer::new(told.budget()).layer(upstream.clone());
    upstream.play("m", failure(500));

    let outcome = StackService::new(service).ask(prompt_json("m")).await;

    let messages: Vec<_> = told.all().into_iter().map(|it| it.message).collect();
    assert_eq!(messages, ["no", "upstream transport failed: busy"]);
    assert!(outcome.error.is_some());
}

#[tokio::test(start_paused = true)]
async fn the_innermost_layer_with_a_hook_calls_it() {
    let (inner, outer) = (Told::default(), Told::default());
    let upstream = Upstream::script(failure(500));
    let both = models(["a", "b"])
        .budget(outer.budget())
        .layer(RetryBudgetLayer::new(inner.budget()).layer(upstream.clone()));
    both.oneshot(prompt("a")).await.unwrap();
    assert_eq!(inner.ends(), ["a", "a", "b", "b"].map(server));
    assert_eq!(outer.ends(), []);

    let alone = models(["a", "b"])
        .budget(outer.budget())
        .layer(RetryBudgetLayer::new(no_delay()).layer(upstream.clone()));
    alone.oneshot(prompt("a")).await.unwrap();
    assert_eq!(outer.ends(), ["a", "b"].map(server));
}

/// The layer in between ends the attempt of the fallback layer, around one repeat.
#[tokio::test(start_paused = true)]
async fn an_attempt_around_others_is_not_told_again() {
    let silent = Script::before_head().never();
    let upstream = Upstream::scripts([failure(500), silent, healthy()]);
    let told = Told::default();
    let service = models(["a", "b"]).budget(told.budget()).layer(
        HardCeilingLayer::new(secs(9)).layer(RetryBudgetLayer::new(told.budget()).layer(upstream)),
    );

    let answer = service.oneshot(prompt("a")).await.unwrap();
    answer.into_body().read().await.whole();

    let a = ("a".to_owned(), TerminalReason::HardCeiling);
    let b = ("b".to_owned(), TerminalReason::Completed);
    assert_eq!(told.ends(), [server("a"), a, b]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_it_changes_nothing() {
    let heard = LogCapture::start();
    let budget = no_delay().after_attempt(|_| panic!("in the hook"));
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().budget(budget).build(&upstream);

    stack.ask(prompt("m")).await.whole();

    assert_eq!(heard.events("after_attempt panicked").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_usage_of_a_stream_that_fails_at_its_beginning_is_told() {
    let error = "data: {\"error\":{\"message\":\"down\",\"type\":\"server_error\"}}\n\n";
    let fails = Script::sse().data(USAGE).data(error).data(DONE);
    let upstream = Upstream::scripts([fails, healthy()]);
    let told = Told::default();
    let stack = Stack::default().budget(told.budget()).build(&upstream);

    stack.ask(prompt("m")).await.whole();

    let failed = &told.all()[0];
    assert_eq!(failed.message, "down");
    assert_eq!(failed.usage.unwrap().input_tokens, 7);
    assert_eq!(failed.duration, Duration::ZERO);
}
