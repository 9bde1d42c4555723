use std::convert::Infallible;

use tower::{Layer, ServiceExt};
use tower_agent::{LoopGuardLayer, Run, TerminalReason, ToolError};

use super::{
    agent::{Agent, Dialect},
    told,
};
use crate::support::{Outcome, Script, Upstream};

#[derive(serde::Serialize)]
struct Job {
    job: u32,
}

async fn status(run: &Run, result: &'static str) -> Result<&'static str, ToolError<Infallible>> {
    let call = run.tool("job_status").arguments(&Job { job: 7 });
    call.call(async move { Ok(result) })
        .result_by(|found| *found)
        .await
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_says_what_it_does_is_ended_at_the_twentieth() {
    let run = Run::open();
    run.end_when_looping();
    let events = run.subscribe();
    for _ in 0..20 {
        assert_eq!(status(&run, "running").await.unwrap(), "running");
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::LoopDetected));
    let refused = status(&run, "running").await.unwrap_err();
    assert!(matches!(refused, ToolError::Terminated(_)), "{refused:?}");
    let told = told(events).await;
    assert_eq!(
        told[..3],
        [
            "stuck 5",
            "same call warned job_status 10",
            "same call stopped job_status 20"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_result_that_changes_is_no_loop() {
    let run = Run::open();
    run.end_when_looping();
    for turn in 0..19 * 3 {
        let changed = turn % 19 == 18;
        status(&run, if changed { "changed" } else { "running" })
            .await
            .ok();
        if turn < 29 {
            assert_eq!(run.terminal_reason(), None, "{turn}");
        }
    }
    // The same arguments thirty times in a row are another matter.
    let end = run.terminated().unwrap();
    assert!(
        end.message().contains("job_status 30 times in a row"),
        "{}",
        end.message()
    );
}

#[tokio::test(start_paused = true)]
async fn the_same_error_is_the_same_result() {
    let run = Run::open();
    run.end_when_looping();
    for turn in 1..=20 {
        assert_eq!(run.terminal_reason(), None, "{turn}");
        let call = run.tool("edit").arguments(&Job { job: 7 });
        let failed = call.call(async { Err::<(), _>("no such file") }).await;
        assert!(matches!(failed, Err(ToolError::Failed(_))));
    }
    assert_eq!(run.terminal_reason(), Some(TerminalReason::LoopDetected));
}

#[tokio::test(start_paused = true)]
async fn without_a_layer_or_a_word_of_the_program_it_is_told_and_goes_on() {
    let run = Run::open();
    let events = run.subscribe();
    for _ in 0..25 {
        assert_eq!(status(&run, "running").await.unwrap(), "running");
    }
    assert!(run.snapshot().stuck);

    run.end(TerminalReason::Aborted);
    let told = told(events).await;
    assert_eq!(
        told[..4],
        [
            "stuck 5",
            "same call warned job_status 10",
            "same call observed job_status 20",
            "same call warned job_status 20"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_layer_that_any_call_has_passed_ends_it() {
    let service = LoopGuardLayer::new()
        .stop(7)
        .layer(Upstream::script(Script::answer(200, "{}")));
    let run = Run::open();
    for _ in 0..3 {
        status(&run, "running").await.unwrap();
    }
    let request = run.attach(Agent::new(Dialect::Chat).request());
    drop(service.oneshot(request).await.unwrap());
    for turn in 4..=7 {
        assert_eq!(run.terminal_reason(), None, "{turn}");
        status(&run, "running").await.unwrap();
    }
    assert_eq!(run.terminal_reason(), Some(TerminalReason::LoopDetected));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_always_dies_of_its_own_window_is_found() {
    let run = Run::open();
    run.end_when_looping();
    for turn in 1..=20 {
        assert_eq!(run.terminal_reason(), None, "{turn}");
        assert_eq!(run.snapshot().stuck, turn > 5, "{turn}");
        let tool = run.tool("wait").arguments(&Job { job: 7 });
        let window = tool.window(crate::support::secs(5));
        let died = window.watch(std::future::pending::<()>()).await;
        assert!(died.is_err());
    }
    assert_eq!(run.terminal_reason(), Some(TerminalReason::LoopDetected));
    let words = run.terminated().unwrap().message();
    assert!(words.contains("20 times with the same result"), "{words}");
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_says_nothing_is_not_counted() {
    let run = Run::open();
    for _ in 0..40 {
        run.tool("job_status").watch(async {}).await.unwrap();
    }
    assert_eq!(run.terminal_reason(), None);
    assert!(!run.snapshot().stuck);
}

#[tokio::test(start_paused = true)]
async fn a_watched_tool_counts_by_its_arguments() {
    let run = Run::open();
    run.end_when_looping();
    for turn in 1..=30 {
        assert_eq!(run.terminal_reason(), None, "{turn}");
        run.tool("wait")
            .arguments(&Job { job: 7 })
            .watch(async {})
            .await
            .unwrap();
    }
    assert_eq!(run.terminal_reason(), Some(TerminalReason::LoopDetected));
}

#[tokio::test(start_paused = true)]
async fn a_tool_of_the_program_and_the_history_of_its_model_calls_count_once() {
    let upstream = Upstream::script(Script::answer(200, "{}"));
    let service = LoopGuardLayer::new().layer(upstream.clone());
    let run = Run::open();
    let mut agent = Agent::new(Dialect::Anthropic);
    for turn in 1..=20 {
        let request = run.attach(agent.request());
        Outcome::of(service.clone().oneshot(request)).await.whole();
        assert_eq!(run.terminal_reason(), None, "{turn}");
        status(&run, "running").await.unwrap();
        agent.does("job_status", "running");
    }

    assert_eq!(run.terminal_reason(), Some(TerminalReason::LoopDetected));
}
