//! Failures that reach the harness, counted over the calls of one run.

use futures_util::FutureExt;
use http::HeaderValue;
use http_body_util::BodyExt;
use tokio::time::timeout;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    ClientDisconnectLayer, HardCeilingLayer, NodeKind, PumpLayer, ReplayBody, RetryBudget,
    RetryBudgetLayer, Run, RunLayer, RunRegistry, TerminalReason, attempt::Count,
    llm::failure::FailureClass,
};

use crate::support::{
    ERROR, Outcome, ReadExt, Script, Stack, StackService, Upstream, attach, chat, failure, healthy,
    healthy_text, no_delay, prompt, prompt_json, secs,
};

fn around(upstream: &Upstream, budget: RetryBudget) -> StackService {
    Stack::default().budget(budget).build(upstream)
}

/// One call of the run, read whole. It may end the run with its answer, and not before.
async fn call(service: &StackService, run: &Run, model: &str) -> Outcome {
    let answer = service.clone().oneshot(run.attach(prompt(model)));
    let head = answer.inspect(|_| assert_eq!(run.terminal_reason(), None));
    let outcome = Outcome::of(head).await;
    outcome.whole();
    assert!(outcome.reason.is_some(), "the call is settled");
    outcome
}

/// The reason for which a run that is over refuses a call.
async fn refused(service: &StackService, run: &Run) -> Option<TerminalReason> {
    let request = run.attach(prompt("m")).map(|_| ReplayBody::default());
    let outcome = service.ask(request).await;
    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(run.in_flight(), 0);
    outcome.reason
}

fn failed() -> Option<TerminalReason> {
    Some(TerminalReason::Failed(FailureClass::Server))
}

/// covers: D2
#[tokio::test(start_paused = true)]
async fn the_fourth_same_failure_is_answered_as_it_was_and_ends_the_run() {
    let upstream = Upstream::script(failure(500));
    let service = around(&upstream, no_delay());
    let run = Run::open();

    for _ in 0..4 {
        let outcome = call(&service, &run, "m").await;
        assert_eq!((outcome.status, outcome.whole()), (500, ERROR));
        assert_eq!(outcome.reason, failed());
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
    assert_eq!(upstream.calls(), 8);
    let late = refused(&service, &run).await;
    assert_eq!(late, Some(TerminalReason::RetryBudget));
    assert_eq!(upstream.calls(), 8);
}

/// The layer outside of the one that opens the call is polled when the call settles, and
/// the run ends in that poll.
#[tokio::test(start_paused = true)]
async fn what_hits_the_limit_is_answered_as_it_was_by_a_layer_outside_of_the_run_too() {
    let budget = no_delay().max_attempts_per_candidate(1).per_run(0);
    let service = ServiceBuilder::new()
        .layer(HardCeilingLayer::new(secs(600)))
        .layer(RunLayer::new(RunRegistry::new()))
        .layer(RetryBudgetLayer::new(budget))
        .service(Upstream::script(failure(500)));
    let mut request = prompt("m");
    let id = http::HeaderValue::from_static("r");
    request.headers_mut().insert("x-run-id", id);

    let answer = service.oneshot(request).await.unwrap();
    let run = answer.extensions().get::<Run>().unwrap().run();
    assert_eq!(answer.into_body().read().await.whole(), ERROR);

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RunErrors));
}

/// covers: D3
#[tokio::test(start_paused = true)]
async fn the_eleventh_failure_of_any_kind_ends_the_run() {
    let upstream = Upstream::script(failure(500));
    let service = around(&upstream, no_delay().max_attempts_per_candidate(1));
    let run = Run::open();

    for model in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"] {
        let outcome = call(&service, &run, model).await;
        assert_eq!((outcome.status, outcome.whole()), (500, ERROR));
        assert_eq!(outcome.reason, failed());
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RunErrors));
    let late = refused(&service, &run).await;
    assert_eq!(late, Some(TerminalReason::RunErrors));
    assert_eq!(upstream.calls(), 11);
}

/// covers: D2
#[tokio::test(start_paused = true)]
async fn successes_do_not_reset_what_was_counted() {
    let scripts = [
        failure(500),
        healthy(),
        failure(500),
        healthy(),
        failure(500),
        healthy(),
        failure(500),
    ];
    let upstream = Upstream::scripts(scripts);
    let service = around(&upstream, no_delay().max_attempts_per_candidate(1));
    let run = Run::open();

    for at in 0..7 {
        let outcome = call(&service, &run, "m").await;
        assert_eq!(outcome.status, if at % 2 == 0 { 500 } else { 200 });
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_a_repeat_made_good_is_not_counted() {
    let upstream = Upstream::scripts((0..10).flat_map(|_| [failure(500), healthy()]));
    let service = around(&upstream, no_delay());
    let run = Run::open();

    for _ in 0..10 {
        let outcome = call(&service, &run, "m").await;
        assert_eq!(outcome.whole(), healthy_text());
        assert_eq!(outcome.reason, Some(TerminalReason::Completed));
    }

    assert_eq!(run.terminal_reason(), None);
    assert_eq!(upstream.calls(), 20);
}

/// covers: D2
#[tokio::test(start_paused = true)]
async fn other_words_are_another_key_and_other_numbers_are_not() {
    let upstream = Upstream::scripts([
        Script::error_code(500, "x"),
        Script::answer(500, r#"{"error":{"message":"try in 2 s","type":"x"}}"#),
        Script::answer(500, r#"{"error":{"message":"try in 30 s","type":"x"}}"#),
    ]);
    let budget = no_delay().max_attempts_per_candidate(1).per_error_key(1);
    let service = around(&upstream, budget);
    let run = Run::open();

    call(&service, &run, "m").await;
    call(&service, &run, "m").await;
    assert_eq!(run.terminal_reason(), None);
    call(&service, &run, "m").await;

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_transport_are_counted_too() {
    let broken = Script::before_head().fail("reset");
    let upstream = Upstream::script(broken);
    let service = around(&upstream, no_delay().max_attempts_per_candidate(1));
    let run = Run::open();

    for _ in 0..4 {
        let request = run.attach(prompt("m"));
        let error = service.clone().oneshot(request).await.unwrap_err();
        assert_eq!(error.source().unwrap().to_string(), "reset");
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
    assert_eq!(run.in_flight(), 0);
}

/// covers: D2
#[tokio::test(start_paused = true)]
async fn counting_every_attempt_a_key_is_spent_within_one_call_and_ends_that_alone() {
    let upstream = Upstream::script(failure(500));
    let budget = no_delay().max_attempts_per_candidate(9).count(Count::Every);
    let service = around(&upstream, budget);
    let run = Run::open();

    let outcome = call(&service, &run, "m").await;

    assert_eq!((outcome.status, outcome.whole()), (500, ERROR));
    assert_eq!(outcome.reason, Some(TerminalReason::RetryBudget));
    assert_eq!(upstream.calls(), 4);
    assert_eq!(run.terminal_reason(), None);
    let outcome = call(&service, &run, "m").await;
    assert_eq!((outcome.status, outcome.whole()), (500, ERROR));
    assert_eq!(outcome.reason, Some(TerminalReason::RetryBudget));
    assert_eq!(upstream.calls(), 5, "the key stays spent");
}

#[tokio::test(start_paused = true)]
async fn counting_every_attempt_the_eleventh_ends_the_run() {
    let upstream = Upstream::script(failure(500));
    let budget = no_delay()
        .max_attempts_per_candidate(20)
        .count(Count::Every);
    let service = around(&upstream, budget.per_error_key(None).unshared());
    let run = Run::open();

    let outcome = call(&service, &run, "m").await;

    assert_eq!((outcome.status, outcome.whole()), (500, ERROR));
    assert_eq!(upstream.calls(), 11);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::RunErrors));
}

#[tokio::test(start_paused = true)]
async fn several_budgets_tighten_and_share_what_was_counted() {
    let upstream = Upstream::script(failure(500));
    let one = || no_delay().max_attempts_per_candidate(1);
    let wide = around(&upstream, one());
    let narrow = around(&upstream, one().per_error_key(2));
    let run = Run::open();

    call(&wide, &run, "m").await;
    call(&narrow, &run, "m").await;
    assert_eq!(run.terminal_reason(), None);
    call(&wide, &run, "m").await;

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
    assert_eq!(upstream.calls(), 3);
}

/// Many clients look at the status and drop the rest: the harness had its failure
/// all the same.
/// covers: D3
#[tokio::test(start_paused = true)]
async fn a_failed_answer_that_nobody_reads_is_counted() {
    let upstream = Upstream::script(failure(500));
    let budget = no_delay().max_attempts_per_candidate(1).per_error_key(None);
    let budget = budget.per_run(3);
    let service = ClientDisconnectLayer::new().layer(around(&upstream, budget));
    let run = Run::open();

    for _ in 0..4 {
        assert_eq!(run.terminal_reason(), None);
        let (request, call) = attach(&run, prompt("m"));
        let answer = service.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), 500);
        drop(answer);
        let left = Some(TerminalReason::ClientDisconnect);
        assert_eq!(call.terminal_reason(), left);
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RunErrors));
    assert_eq!(run.snapshot().errors, 4);
}

/// Whose rest is read on, to learn what it cost, is the same to the run.
/// covers: D3
#[tokio::test(start_paused = true)]
async fn a_failed_answer_whose_rest_is_drained_is_counted() {
    let long = Script::json().status(500).data(vec![b' '; 1 << 20]).never();
    let upstream = Upstream::script(long);
    let budget = no_delay().max_attempts_per_candidate(1).per_error_key(None);
    let pump = PumpLayer::new().drain(Some(secs(30)));
    let service = pump.layer(around(&upstream, budget.per_run(3)));
    let run = Run::open();

    for _ in 0..4 {
        assert_eq!(run.terminal_reason(), None);
        let answer = service.clone().oneshot(run.attach(prompt("m")));
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 500);
        drop(answer);
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RunErrors));
    assert_eq!(run.snapshot().errors, 4);
}

#[tokio::test(start_paused = true)]
async fn the_third_unread_failure_in_a_row_ends_the_run() {
    let upstream = Upstream::script(failure(500));
    let budget = no_delay().max_attempts_per_candidate(1).per_error_key(None);
    let budget = budget.per_run(None).consecutive_errors(3);
    let service = around(&upstream, budget);
    let run = Run::open();

    for _ in 0..3 {
        assert_eq!(run.terminal_reason(), None);
        let request = run.attach(prompt("m"));
        drop(service.clone().oneshot(request).await.unwrap());
    }

    let row = Some(TerminalReason::ConsecutiveErrors);
    assert_eq!(run.terminal_reason(), row);
}

/// covers: D3
#[tokio::test(start_paused = true)]
async fn who_leaves_before_or_in_a_good_answer_leaves_no_failure() {
    let slow = failure(500).delayed(5);
    let upstream = Upstream::scripts([slow, Script::sse().data(chat("a")).never()]);
    let budget = no_delay().max_attempts_per_candidate(1).per_run(0);
    let service = ClientDisconnectLayer::new().layer(around(&upstream, budget));
    let run = Run::open();

    let early = service.clone().oneshot(run.attach(prompt("m")));
    assert!(timeout(secs(1), early).await.is_err());
    let answer = service.oneshot(run.attach(prompt("m"))).await;
    let mut body = answer.unwrap().into_body();
    assert!(body.frame().await.is_some());
    drop(body);

    assert_eq!((run.terminal_reason(), run.snapshot().errors), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn runs_do_not_share_what_was_counted() {
    let upstream = Upstream::script(failure(500));
    let service = around(&upstream, no_delay().max_attempts_per_candidate(1));

    for _ in 0..8 {
        let run = Run::open();
        call(&service, &run, "m").await;
        assert_eq!(run.terminal_reason(), None);
    }

    assert_eq!(upstream.calls(), 8);
}

#[tokio::test(start_paused = true)]
async fn tools_and_calls_are_counted_together() {
    let upstream = Upstream::script(failure(500));
    let budget = no_delay().max_attempts_per_candidate(1).per_run(3);
    let service = around(&upstream, budget);
    let run = Run::open();

    call(&service, &run, "a").await;
    call(&service, &run, "b").await;
    for _ in 0..2 {
        assert_eq!(run.terminal_reason(), None);
        let failed = async { Err::<(), _>("no such file") };
        assert!(run.tool("read").call(failed).await.is_err());
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RunErrors));
}

/// A tool of the run: what it fails with, if it does.
async fn tool(run: &Run, name: &'static str, error: Option<String>) {
    let done = run.tool(name).call(async { error.map_or(Ok(()), Err) });
    let _ = done.await;
}

/// covers: D2
#[tokio::test(start_paused = true)]
async fn the_fourth_same_failure_of_a_tool_ends_the_run_whatever_succeeds_between() {
    let service = around(&Upstream::script(healthy()), no_delay());
    let run = Run::open();
    for number in 1..=4 {
        call(&service, &run, "m").await;
        tool(&run, "read", None).await;
        assert_eq!(run.terminal_reason(), None, "before failure {number}");
        tool(&run, "read", Some(format!("no answer within {number} s"))).await;
    }
    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
    assert_eq!(run.snapshot().errors, 4);
}

/// covers: D3
#[tokio::test(start_paused = true)]
async fn the_eleventh_error_of_tools_and_calls_ends_the_run_whatever_succeeds_between() {
    let upstream = Upstream::scripts((0..6).flat_map(|_| [failure(500), healthy()]));
    let service = around(&upstream, no_delay().max_attempts_per_candidate(1));
    let run = Run::open();
    for model in ["a", "b", "c", "d", "e"] {
        assert_eq!(call(&service, &run, model).await.status, 500);
        assert_eq!(call(&service, &run, model).await.status, 200);
        tool(&run, model, Some("no such file".into())).await;
        tool(&run, model, None).await;
    }
    assert_eq!((run.terminal_reason(), run.snapshot().errors), (None, 10));

    call(&service, &run, "f").await;

    assert_eq!(run.terminal_reason(), Some(TerminalReason::RunErrors));
    assert_eq!(run.snapshot().errors, 11);
}

/// covers: D3
#[tokio::test(start_paused = true)]
async fn of_a_key_and_a_total_that_are_spent_at_once_the_key_is_what_it_ends_for() {
    let run = Run::open();
    no_delay().per_error_key(1).per_run(1).limit_errors(&run);
    for _ in 0..2 {
        assert_eq!(run.terminal_reason(), None);
        tool(&run, "read", Some("no such file".into())).await;
    }
    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
}

/// covers: T50
#[tokio::test(start_paused = true)]
async fn a_failure_under_a_good_status_is_one_of_the_call_and_counts_on_its_run() {
    let upstream = Upstream::script(Script::answer(200, ERROR));
    let budget = no_delay().per_error_key(None).per_run(1);
    let stack = Stack::default().run(&RunRegistry::new()).budget(budget);

    for ended in [None, Some(TerminalReason::RunErrors)] {
        let mut request = prompt_json("m");
        let id = HeaderValue::from_static("r-1");
        request.headers_mut().insert("x-run-id", id);
        let outcome = stack.build(&upstream).ask(request).await;
        assert_eq!(outcome.whole(), ERROR);

        let call = upstream.requests().pop().unwrap().run().parent().unwrap();
        assert_eq!(call.kind(), NodeKind::Call);
        assert_eq!(call.terminal_reason(), failed());
        assert_eq!(call.run().terminal_reason(), ended);
    }
    assert_eq!(upstream.calls(), 4);
}

/// covers: D2
#[tokio::test(start_paused = true)]
async fn every_attempt_of_a_run_of_one_call_counts() {
    let upstream = Upstream::script(failure(500));
    let budget = no_delay().count(Count::Every).per_error_key(1);
    let budget = budget.max_attempts_per_candidate(5);
    let stack = Stack::default().budget(budget).build(&upstream);

    let outcome = stack.ask(prompt("m")).await;
    let run = outcome.run();
    assert_eq!(outcome.whole(), ERROR);

    assert_eq!(upstream.calls(), 2);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::RetryBudget));
}
