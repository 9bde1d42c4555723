//! Repeats of each candidate, inside.

use http::StatusCode;
use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    RetryBudget, RetryBudgetLayer, Run, TerminalReason,
    attempt::{Count, NextAttempt},
    llm::failure::FailureClass,
};

use super::models;
use crate::support::{
    DONE, ERROR, Outcome, PRELUDE, Place, ReadExt, Script, Stack, StackService, Upstream, attach,
    chat, failure, healthy, healthy_text, no_delay, prompt, prompt_as, secs, tries,
};

fn both(budget: &RetryBudget, upstream: &Upstream) -> StackService {
    let stack = Stack::default().candidates(["a", "b"]);
    stack.budget(budget.clone()).build(upstream)
}

#[tokio::test(start_paused = true)]
async fn two_attempts_of_two_candidates_are_four_calls_that_are_numbered_on() {
    let upstream = Upstream::script(failure(500));
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));

    let outcome = both(&no_delay(), &upstream).ask(request).await;

    assert_eq!(upstream.models(), ["a", "a", "b", "b"]);
    let numbers = ["1", "2", "3", "4"].map(|number| Some(number.to_owned()));
    assert_eq!(upstream.header("x-attempt"), numbers);
    assert_eq!(outcome.headers["x-attempt"], "4");
    let server = FailureClass::Server;
    let told = ["a", "a", "b", "b"].map(|name| (Some(name.to_owned()), server));
    assert_eq!(outcome.tries, told);
    assert_eq!(outcome.whole(), ERROR);
    assert_eq!(call.terminal_reason(), Some(TerminalReason::Failed(server)));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_repeat_of_the_second_candidate_may_serve() {
    let scripts = [failure(500), failure(500), failure(500), healthy()];
    let upstream = Upstream::scripts(scripts);

    let outcome = both(&no_delay(), &upstream).ask(prompt("a")).await;

    assert_eq!(outcome.headers["x-served-model"], "b");
    assert_eq!(outcome.headers["x-attempt"], "4");
    let run = outcome.run();
    assert_eq!(outcome.whole(), healthy_text());
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_that_lasts_too_long_is_left_for_the_next_candidate() {
    let limited = failure(429).header("retry-after", "3600");
    let upstream = Upstream::scripts([limited, healthy()]);
    let start = Instant::now();

    let outcome = both(&no_delay(), &upstream).ask(prompt("a")).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(upstream.models(), ["a", "b"]);
    assert_eq!(upstream.times(start), [secs(0), secs(0)]);
}

/// covers: G4
#[tokio::test(start_paused = true)]
async fn an_outage_of_one_candidate_does_not_starve_the_other() {
    let budget = no_delay().shared(0.25, 0).per_error_key(None);
    // What the outage of the first takes and pays in is its own.
    for _ in 0..3 {
        let upstream = Upstream::scripts([failure(500), healthy()]);
        let request = prompt("a");
        both(&budget, &upstream).oneshot(request).await.unwrap();
        assert_eq!(upstream.models(), ["a", "b"]);
    }
    let upstream = Upstream::script(failure(500));

    both(&budget, &upstream).oneshot(prompt("a")).await.unwrap();

    // Each has four deposits of a quarter by now, and had no repeat.
    assert_eq!(upstream.models(), ["a", "a", "b", "b"]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_bucket_forbids_no_other_candidate() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let budget = no_delay().shared(0.0, 0);

    let outcome = both(&budget, &upstream).ask(prompt("a")).await;

    assert_eq!(outcome.status, 200);
    assert_eq!(upstream.models(), ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_silent_call_that_does_not_stream_moves_straight_on() {
    for (stream, times) in [(false, [0, 10, 0]), (true, [0, 10, 20])] {
        let upstream = Upstream::script(Script::before_head().never());
        let stack = Stack::default()
            .layer(Place::Fallback, models(["a", "b"]))
            .budget(no_delay())
            .attempt_step(10);
        let start = Instant::now();

        let outcome = stack.build(&upstream).ask(prompt_as("a", stream)).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::StepTimeout));
        let asked = if stream {
            vec!["a", "b", "b"]
        } else {
            vec!["a", "b"]
        };
        assert_eq!(upstream.models(), asked);
        let expected = times.map(secs);
        let seen = upstream.times(start);
        assert_eq!(seen[..2], expected[..2]);
        assert!(!stream || seen[2] == expected[2]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_spent_within_a_call_leaves_the_next_candidate() {
    let budget = no_delay().max_attempts_per_candidate(9).count(Count::Every);
    let upstream = Upstream::script(failure(500));
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));

    let outcome = both(&budget, &upstream).ask(request).await;
    outcome.whole();

    assert_eq!(upstream.models(), ["a", "a", "a", "a", "b", "b", "b", "b"]);
    assert_eq!(run.terminal_reason(), None);
    let spent = Some(TerminalReason::RetryBudget);
    for seen in upstream.requests() {
        assert_eq!(seen.run().parent().unwrap().terminal_reason(), spent);
    }
    let failed = TerminalReason::Failed(FailureClass::Server);
    assert_eq!(call.terminal_reason(), Some(failed));
    assert_eq!(run.in_flight(), 0);
}

/// covers: F4, H5
#[tokio::test(start_paused = true)]
async fn the_hook_sees_whom_the_next_attempt_goes_to() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let budget = no_delay().before_attempt(move |next: &NextAttempt<'_>| {
        let candidate = next.candidate.unwrap().to_owned();
        noted.lock().unwrap().push((next.attempt, candidate));
        true
    });
    let upstream = Upstream::script(failure(500));

    both(&budget, &upstream).oneshot(prompt("a")).await.unwrap();

    let expected = [(2, "a"), (3, "b"), (4, "b")];
    let seen = seen.lock().unwrap();
    let seen: Vec<_> = seen
        .iter()
        .map(|(number, name)| (*number, &**name))
        .collect();
    assert_eq!(seen, expected);
}

/// covers: F4
#[tokio::test(start_paused = true)]
async fn a_hook_that_refuses_another_candidate_hands_up_the_answer() {
    let budget = no_delay().before_attempt(|next| next.candidate == Some("a"));
    let upstream = Upstream::scripts([failure(500), failure(503), healthy()]);

    let outcome = both(&budget, &upstream).ask(prompt("a")).await;

    assert_eq!(outcome.status, 503);
    assert_eq!(upstream.models(), ["a", "a"]);
}

#[tokio::test(start_paused = true)]
async fn the_fallback_takes_the_commit_of_the_repeats() {
    let broken = Script::sse().data(PRELUDE).data(chat("a")).fail("reset");
    let upstream = Upstream::scripts([failure(500), broken, healthy()]);
    let service = both(&no_delay(), &upstream);
    let run = Run::open();
    let (request, call) = attach(&run, prompt("a"));

    let outcome = service.ask(request).await;

    assert_eq!(outcome.text, [PRELUDE, &chat("a")].concat());
    assert_eq!(outcome.error.unwrap().to_string(), "reset");
    assert_eq!(upstream.models(), ["a", "a"]);
    let transport = TerminalReason::Failed(FailureClass::Transport);
    assert_eq!(call.terminal_reason(), Some(transport));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn repeats_around_the_fallback_ask_nobody_again() {
    let upstream = Upstream::script(failure(500));
    let service =
        RetryBudgetLayer::new(no_delay()).layer(models(["a", "b"]).layer(upstream.clone()));

    let answer = service.oneshot(prompt("a")).await.unwrap();

    assert_eq!(upstream.models(), ["a", "b"]);
    assert_eq!(answer.headers()["x-attempt"], "2");
    assert_eq!(tries(&answer).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn repeats_of_a_candidate_stay_within_its_share_of_the_time() {
    let limited = failure(429).header("retry-after", "20");
    let never = Script::before_head().never();
    for (scripts, asked, times) in [
        // A wait that is longer than the share is not begun.
        ([limited, never.clone()], ["a", "b"], [0, 0]),
        // What the share cut is not asked again.
        ([never.clone(), never], ["a", "b"], [0, 15]),
    ] {
        let upstream = Upstream::scripts(scripts);
        let stack = Stack::default().ceiling(30).candidates(["a", "b"]);
        let stack = stack.budget(no_delay()).build(&upstream);
        let run = Run::open();
        let (request, call) = attach(&run, prompt("a"));
        let start = Instant::now();

        let outcome = stack.ask(request).await;

        assert_eq!(outcome.status, Outcome::NO_ANSWER);
        assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
        assert_eq!(upstream.models(), asked);
        assert_eq!(upstream.times(start), times.map(secs));
        assert_eq!(outcome.at, secs(30));
        assert_eq!(call.terminal_reason(), Some(TerminalReason::HardCeiling));
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_repeat_has_committed_is_not_cut_at_the_share() {
    let slow = Script::sse().wait(9.0).data(chat("a"));
    let slow = slow.wait(15.0).data(DONE);
    let upstream = Upstream::scripts([failure(500), slow, healthy()]);
    let stack = Stack::default().ceiling(30).candidates(["a", "b"]);
    let stack = stack.budget(no_delay()).build(&upstream);

    let outcome = stack.ask(prompt("a")).await;
    assert_eq!(outcome.headers["x-served-model"], "a");

    assert_eq!(outcome.whole(), chat("a") + DONE);
    assert_eq!(outcome.at, secs(24));
}

#[tokio::test(start_paused = true)]
async fn the_innermost_fallback_says_who_served() {
    let upstream = Upstream::scripts([failure(500), healthy()]);
    let service = ServiceBuilder::new()
        .layer(models(["a", "b"]))
        .layer(models(["a", "b"]))
        .service(upstream.clone());

    let answer = service.oneshot(prompt("a")).await.unwrap();

    assert_eq!(answer.headers()["x-served-candidate"], "b");
    assert_eq!(answer.headers()["x-served-model"], "b");
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(upstream.requests()[1].body().contains(r#""b""#));
    answer.into_body().read().await;
}
