//! What is held too long, or is too much to be held, counts as committed.

use tokio::time::Instant;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_agent::{
    Candidate, ModelFallbackLayer, RetryBudgetLayer, Run, StepTimeoutLayer, TerminalReason,
};

use crate::commit::{hold_stacks, hold_stacks_for};
use crate::support::{
    DONE, Outcome, PRELUDE, Place, ReadExt, Script, Stack, Upstream, attach, chat, healthy,
    healthy_text, no_delay, poll_once, prompt, secs,
};

const KIB: usize = 1024;

#[tokio::test(start_paused = true)]
async fn two_hundred_and_fifty_six_events_are_a_commit() {
    for (events, calls) in [(255, 2), (256, 1)] {
        let script = Script::sse().repeat(events, 0.0, PRELUDE).fail("reset");
        for (upstream, service) in hold_stacks([script.clone(), healthy()]) {
            let outcome = service.ask(prompt("m")).await;

            assert_eq!(upstream.calls(), calls);
            if calls == 1 {
                assert_eq!(outcome.text, PRELUDE.repeat(256));
                assert_eq!(outcome.error.unwrap().to_string(), "reset");
            } else {
                assert_eq!(outcome.whole(), healthy_text());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_hundred_and_fifty_six_kib_are_a_commit() {
    let comment = format!(":{}\n", " ".repeat(KIB - 2));
    for (kib, calls) in [(256, 2), (257, 1)] {
        let script = Script::sse().repeat(kib, 0.0, &comment).fail("reset");
        for (upstream, service) in hold_stacks([script.clone(), healthy()]) {
            let outcome = service.ask(prompt("m")).await;

            assert_eq!(upstream.calls(), calls, "{kib}");
            if calls == 1 {
                assert_eq!(outcome.text.len(), kib * KIB);
                assert_eq!(outcome.error.unwrap().to_string(), "reset");
            } else {
                assert_eq!(outcome.whole(), healthy_text());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_is_shorter_than_the_stall_commits_early() {
    let stalls = Script::sse().data(PRELUDE).never();
    let upstream = [(); 2].map(|()| Upstream::scripts([stalls.clone(), healthy()]));
    let step = StepTimeoutLayer::new(secs(20));
    let repeats = ServiceBuilder::new()
        .layer(RetryBudgetLayer::new(no_delay()).hold(secs(5)))
        .layer(step)
        .service(upstream[0].clone())
        .boxed_clone();
    let fallback = ServiceBuilder::new()
        .layer(ModelFallbackLayer::new(["m", "n"].map(Candidate::new)).hold(secs(5)))
        .layer(step)
        .service(upstream[1].clone())
        .boxed_clone();
    for (service, upstream) in [repeats, fallback].into_iter().zip(upstream) {
        let run = Run::open();
        let (request, call) = attach(&run, prompt("m"));
        let start = Instant::now();

        let answer = service.oneshot(request).await.unwrap();
        assert_eq!(start.elapsed(), secs(5));
        let read = answer.into_body().read().await;

        assert_eq!(read.text, PRELUDE);
        assert_eq!(read.reason(), Some(TerminalReason::StepTimeout));
        assert_eq!(start.elapsed(), secs(20));
        assert_eq!(upstream.calls(), 1);
        assert_eq!(call.terminal_reason(), Some(TerminalReason::StepTimeout));
        assert_eq!(run.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hold_commits_nothing_of_which_there_is_no_head() {
    let late = Script::before_head().wait(7.0).head("text/event-stream");
    let late = late.data(PRELUDE).wait(60.0).data(chat("a")).data(DONE);
    for (upstream, service) in hold_stacks_for([late], Some(secs(5))) {
        let start = Instant::now();

        let answer = service.oneshot(prompt("m")).await.unwrap();

        assert_eq!(start.elapsed(), secs(7));
        assert_eq!(answer.into_body().read().await.whole(), healthy_text());
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_within_the_hold_is_another_try() {
    let script = Script::sse().data(PRELUDE).wait(4.0).fail("reset");
    for (upstream, service) in hold_stacks_for([script, healthy()], Some(secs(5))) {
        let outcome = service.ask(prompt("m")).await;

        assert_eq!(outcome.whole(), healthy_text());
        assert_eq!(upstream.calls(), 2);
    }
}

/// covers: T53
#[tokio::test(start_paused = true)]
async fn empty_frames_are_not_held() {
    let silent = (0..100_000).fold(Script::sse(), |script, _| script.data(""));
    let script = silent.data(PRELUDE).data(chat("a")).data(DONE);
    for (upstream, service) in hold_stacks([script]) {
        let outcome = service.ask(prompt("m")).await;

        assert_eq!(outcome.frames, 3);
        assert_eq!(outcome.whole(), healthy_text());
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn frames_of_nothing_without_end_leave_others_a_turn() {
    let upstream = Upstream::script(Script::sse().flood(""));
    let service = RetryBudgetLayer::new(no_delay()).layer(upstream);
    let mut call = std::pin::pin!(service.oneshot(prompt("m")));

    for _ in 0..3 {
        // It would not come back.
        assert!(poll_once(&mut call).is_pending());
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_beats_a_hold_that_ends_in_the_same_instant() {
    let upstream = Upstream::script(Script::sse().data(PRELUDE).never());
    let stack = Stack::default().ceiling(5).layer(
        Place::Retry,
        RetryBudgetLayer::new(no_delay()).hold(secs(5)),
    );

    let outcome = stack.build(&upstream).ask(prompt("m")).await;

    assert_eq!(outcome.status, Outcome::NO_ANSWER);
    assert_eq!(outcome.reason, Some(TerminalReason::HardCeiling));
}
