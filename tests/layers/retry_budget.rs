//! Repeats, and everything that must not be repeated.

mod counted;
mod denied;
mod ended;
mod nested;
mod nodes;
mod requests;
mod silence;
mod tasks;
mod ties;
mod tools;
mod unready;
mod waits;

use http::StatusCode;
use tower::{Layer, ServiceExt};
use tower_agent::{RetryBudgetLayer, Run, TerminalReason, llm::failure::FailureClass};

use crate::support::{
    ERROR, ReadExt, Script, Stack, Upstream, attach, failure, healthy, healthy_text, no_delay,
    prompt, run_on,
};

/// covers: T37
#[tokio::test(start_paused = true)]
async fn a_failure_is_repeated_and_the_second_answer_served() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let run = Run::open();

    let answer = service.oneshot(run.attach(prompt("m"))).await.unwrap();

    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["x-attempt"], "2");
    assert_eq!(answer.into_body().read().await.whole(), healthy_text());
    assert_eq!(
        upstream.header("x-attempt"),
        [Some("1".into()), Some("2".into())]
    );
    let [first, second] = &upstream.requests()[..] else {
        panic!()
    };
    assert_eq!(first.body(), second.body());
    let class = FailureClass::Server;
    assert_eq!(
        first.run().terminal_reason(),
        Some(TerminalReason::Failed(class))
    );
    assert_eq!(
        second.run().terminal_reason(),
        Some(TerminalReason::Completed)
    );
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_a_node_the_run_is_the_call() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());

    let answer = service.oneshot(prompt("m")).await.unwrap();
    let run = run_on(&answer);
    assert_eq!(run.terminal_reason(), None);
    answer.into_body().read().await.whole();

    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(upstream.calls(), 2);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_last_answer_is_handed_on_byte_for_byte() {
    let upstream = Upstream::scripts([failure(500), failure(503).header("x-request-id", "r")]);
    let stack = Stack::default().budget(no_delay()).build(&upstream);

    let outcome = stack.ask(prompt("m")).await;

    assert_eq!(outcome.status, 503);
    assert_eq!(outcome.headers["x-request-id"], "r");
    let failure = outcome.failure.clone().unwrap();
    assert_eq!(failure.class, FailureClass::Server);
    assert_eq!(
        outcome.tries,
        [(None, failure.class), (None, failure.class)]
    );
    let run = outcome.run();
    assert_eq!(outcome.whole(), ERROR);
    assert_eq!(upstream.calls(), 2);
    assert_eq!(
        run.terminal_reason(),
        Some(TerminalReason::Failed(failure.class))
    );
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_transport_that_was_the_last_is_the_source() {
    let broken = Script::before_head().fail("reset by peer");
    let upstream = Upstream::scripts([failure(500), broken]);
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream.clone());
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let error = service.oneshot(request).await.unwrap_err();

    let error = error.source().unwrap();
    assert!(error.is::<std::io::Error>());
    assert_eq!(error.to_string(), "reset by peer");
    assert_eq!(upstream.calls(), 2);
    let failed = |class| Some(TerminalReason::Failed(class));
    let [server, transport] = [FailureClass::Server, FailureClass::Transport].map(failed);
    assert_eq!(upstream.reasons(), [server, transport.clone()]);
    assert_eq!(call.terminal_reason(), transport);
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_the_try_is_on_the_request_and_on_the_answer() {
    let scripts = [failure(500), failure(500), healthy()];
    let upstream = Upstream::scripts(scripts);
    let budget = no_delay().max_attempts_per_candidate(5);
    let stack = Stack::default().budget(budget).build(&upstream);

    let outcome = stack.ask(prompt("m")).await;

    assert_eq!(outcome.headers["x-attempt"], "3");
    let sent = ["1", "2", "3"].map(|number| Some(number.to_owned()));
    assert_eq!(upstream.header("x-attempt"), sent);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_succeeds_carries_no_failure() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let stack = Stack::default().budget(no_delay()).build(&upstream);

    let outcome = stack.ask(prompt("m")).await;

    assert!(outcome.failure.is_none());
    assert_eq!(upstream.calls(), 2);
}
