//! Attempts that a deadline of their own ended.
//!
//! covers: A2, T40

use tokio::time::Instant;
use tower_agent::{Run, TerminalReason, llm::failure::FailureClass};

use crate::support::{
    Outcome, PRELUDE, Script, Stack, StackService, Upstream, attach, failure, healthy,
    healthy_text, later, no_delay, prompt, prompt_as, prompt_json, secs,
};

/// Five attempts, each of which may be silent for ten seconds.
fn five_attempts(upstream: &Upstream) -> StackService {
    Stack::default().retry(5).attempt_step(10).build(upstream)
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_repeated_once() {
    for (script, stream) in [
        (Script::before_head().never(), true),
        (Script::sse().data(PRELUDE).never(), true),
        // The answer says that it is a stream, though nobody asked for one.
        (Script::sse().data(PRELUDE).never(), false),
    ] {
        let upstream = Upstream::script(script);
        let run = Run::open();
        let (request, call) = attach(&run, prompt_as("m", stream));
        let start = Instant::now();

        let outcome = five_attempts(&upstream).ask(request).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
        assert_eq!(call.terminal_reason(), Some(TerminalReason::StepTimeout));
        assert_eq!(run.terminal_reason(), None);
        assert_eq!(upstream.times(start), [secs(0), secs(10)]);
        assert_eq!(outcome.at, secs(20));
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_does_not_stream_is_not_asked_again_after_silence() {
    for script in [
        Script::before_head().never(),
        Script::json().data("{").never(),
    ] {
        let upstream = Upstream::scripts([script, healthy()]);

        let outcome = five_attempts(&upstream).ask(prompt_json("m")).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
        assert_eq!(upstream.calls(), 1);
        assert_eq!(outcome.at, secs(10));
    }
}

/// covers: F2
#[tokio::test(start_paused = true)]
async fn the_repeat_after_silence_may_serve() {
    let silent = Script::sse().data(PRELUDE).never();
    let upstream = Upstream::scripts([silent, healthy()]);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));

    let outcome = five_attempts(&upstream).ask(request).await;

    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Completed));
    let first = upstream.reasons()[0].clone();
    assert_eq!(first, Some(TerminalReason::StepTimeout));
    let dropped = upstream.dropped();
    assert_eq!(dropped.reason, Some(TerminalReason::StepTimeout));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn silence_counts_once_a_call_whatever_failed_in_between() {
    let silent = Script::before_head().never();
    let upstream = Upstream::scripts([silent.clone(), failure(500), silent, healthy()]);
    let start = Instant::now();

    let outcome = five_attempts(&upstream).ask(prompt("m")).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
    assert_eq!(upstream.times(start), [secs(0), secs(10), secs(10)]);
    assert_eq!(outcome.at, secs(20));
}

#[tokio::test(start_paused = true)]
async fn an_attempts_ceiling_is_not_asked_again() {
    for stream in [true, false] {
        let upstream = Upstream::scripts([Script::sse().data(PRELUDE).never(), healthy()]);
        let stack = Stack::default().budget(no_delay()).attempt_ceiling(10);

        let outcome = stack.build(&upstream).ask(prompt_as("m", stream)).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
        assert_eq!(upstream.calls(), 1);
        assert_eq!(outcome.at, secs(10));
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_the_program_ends_is_a_failure_of_the_attempt() {
    let upstream = Upstream::scripts([Script::before_head().never(), healthy()]);
    let stack = Stack::default().budget(no_delay()).build(&upstream);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("m"));
    let ended = later(5, {
        let upstream = upstream.clone();
        move || upstream.requests()[0].run().end(TerminalReason::Aborted)
    });

    let outcome = stack.ask(request).await;

    assert!(ended.await.unwrap());
    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.at, secs(5));
    assert_eq!(outcome.reason, Some(TerminalReason::Aborted));
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_run_that_is_not_ours_is_a_fault_of_its_server() {
    // The upstream has runs of its own, and lets an end of one escape.
    let foreign = Script::before_head().fail_with(|| {
        let other = Run::open();
        other.end(TerminalReason::StepTimeout);
        other.terminated().unwrap().into()
    });
    let upstream = Upstream::scripts([foreign, healthy()]);
    let stack = Stack::default().budget(no_delay()).build(&upstream);

    let outcome = stack.ask(prompt("m")).await;

    assert_eq!(outcome.whole(), healthy_text());
    let server = TerminalReason::Failed(FailureClass::Server);
    assert_eq!(upstream.reasons()[0], Some(server));
    assert_eq!(upstream.calls(), 2);
}
