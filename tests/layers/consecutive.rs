//! Errors in a row, across different tools and calls.
//!
//! covers: D4

use tower::{Layer, ServiceExt};
use tower_agent::{
    Candidate, Cooldowns, ModelFallbackLayer, RetryBudget, Run, TerminalReason, attempt::Count,
};

use crate::support::{ReadExt, Stack, Upstream, failure, healthy, no_delay, prompt, secs};

const IN_A_ROW: Option<TerminalReason> = Some(TerminalReason::ConsecutiveErrors);

/// No limit but on what comes in a row.
fn budget(in_a_row: u32) -> RetryBudget {
    no_delay()
        .per_error_key(None)
        .per_run(None)
        .consecutive_errors(in_a_row)
}

fn limited(in_a_row: u32) -> Run {
    let run = Run::open();
    budget(in_a_row).limit_errors(&run);
    run
}

async fn fails(run: &Run, tool: &'static str) {
    let failed = run.tool(tool).call(async { Err::<(), _>("no") }).await;
    assert!(failed.is_err());
}

async fn succeeds(run: &Run) {
    run.tool("other")
        .call(async { Ok::<_, &str>(()) })
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_third_in_a_row_ends_the_run_and_the_tool_after_it_is_refused() {
    let run = limited(3);
    for tool in ["a", "b"] {
        fails(&run, tool).await;
        assert_eq!(run.terminal_reason(), None);
    }
    fails(&run, "c").await;
    assert_eq!(run.terminal_reason(), IN_A_ROW);

    let mut executed = false;
    let refused = run.tool("d").watch(async { executed = true }).await;

    assert!(refused.is_err() && !executed);
    assert_eq!(run.snapshot().errors, 3);
}

#[tokio::test(start_paused = true)]
async fn it_is_off_unless_set() {
    let run = Run::open();
    RetryBudget::new()
        .per_error_key(None)
        .per_run(None)
        .limit_errors(&run);
    for _ in 0..50 {
        fails(&run, "a").await;
    }
    assert_eq!((run.terminal_reason(), run.snapshot().errors), (None, 50));
}

#[tokio::test(start_paused = true)]
async fn any_success_begins_anew() {
    let run = limited(3);
    for _ in 0..10 {
        fails(&run, "a").await;
        fails(&run, "b").await;
        succeeds(&run).await;
    }
    assert_eq!((run.terminal_reason(), run.snapshot().errors), (None, 20));
    // One that takes part in nothing but its own window is an error too.
    fails(&run, "a").await;
    for expected in [None, IN_A_ROW] {
        let tool = run.tool("slow").window(secs(1));
        tool.watch(std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(run.terminal_reason(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_count_once_and_those_that_complete_begin_anew() {
    for count in [Count::Harness, Count::Every] {
        let bad = [failure(500), failure(500)];
        let scripts = bad.clone().into_iter().chain([healthy()]).chain(bad);
        let upstream = Upstream::scripts(scripts);
        let stack = Stack::default().budget(budget(3).count(count));
        let run = Run::open();
        let call = async || {
            let request = run.attach(prompt("m"));
            stack.build(&upstream).ask(request).await.whole();
        };
        // Two tries each. The second call completes, and the row is over.
        call().await;
        call().await;
        fails(&run, "a").await;
        call().await;
        assert_eq!(run.terminal_reason(), None, "{count:?}");
        call().await;
        assert_eq!(run.terminal_reason(), IN_A_ROW, "{count:?}");
        assert_eq!(upstream.calls(), 7);
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_have_rows_of_their_own() {
    let run = limited(3);
    let agent = run.child();
    budget(2).limit_errors(&agent);
    fails(&run, "a").await;
    fails(&agent, "a").await;
    fails(&run, "b").await;
    succeeds(&agent).await;
    fails(&agent, "a").await;
    assert_eq!(
        (run.terminal_reason(), agent.terminal_reason()),
        (None, None)
    );
    fails(&agent, "a").await;
    assert_eq!(
        (run.terminal_reason(), agent.terminal_reason()),
        (None, IN_A_ROW)
    );
    fails(&run, "c").await;
    assert_eq!(run.terminal_reason(), IN_A_ROW);
}

#[tokio::test(start_paused = true)]
async fn a_key_or_a_total_that_is_spent_with_it_is_what_the_run_ends_for() {
    for (budget, reason) in [
        (budget(2).per_error_key(1), TerminalReason::RetryBudget),
        (budget(2).per_run(1), TerminalReason::RunErrors),
    ] {
        let run = Run::open();
        budget.limit_errors(&run);
        fails(&run, "a").await;
        fails(&run, "a").await;
        assert_eq!(run.terminal_reason(), Some(reason));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_was_asked_for_is_no_error() {
    let upstream = Upstream::script(failure(500));
    let service = ModelFallbackLayer::new([Candidate::new("m")])
        .budget(budget(2).max_attempts_per_candidate(1))
        .cooldowns(Cooldowns::new())
        .layer(upstream.clone());
    let run = Run::open();
    let answer = service.clone().oneshot(run.attach(prompt("m"))).await;
    answer.unwrap().into_body().read().await.whole();
    for _ in 0..5 {
        let refused = service.clone().oneshot(run.attach(prompt("m"))).await;
        assert!(refused.is_err(), "it is left alone");
    }
    assert_eq!((upstream.calls(), run.terminal_reason()), (1, None));
    assert_eq!(run.snapshot().errors, 1);
}

#[tokio::test(start_paused = true)]
async fn errors_are_known_of_a_run_without_limits_too() {
    let run = Run::open();
    for _ in 0..3 {
        fails(&run, "a").await;
    }
    assert_eq!(
        (run.snapshot().errors, run.child().snapshot().errors),
        (3, 0)
    );
}

/// Whoever has a handle on a run, a tool of the agent's for one, may say a limit.
/// covers: D6
#[tokio::test(start_paused = true)]
async fn errors_made_before_a_limit_is_set_count_towards_it() {
    for (limit, reason) in [
        (budget(3), IN_A_ROW),
        (budget(9).per_run(2), Some(TerminalReason::RunErrors)),
        (
            budget(9).per_error_key(2),
            Some(TerminalReason::RetryBudget),
        ),
    ] {
        let run = Run::open();
        for _ in 0..2 {
            fails(&run, "a").await;
        }
        limit.limit_errors(&run);
        assert_eq!(run.terminal_reason(), None);

        fails(&run, "a").await;

        assert_eq!(run.terminal_reason(), reason);
    }
}

#[tokio::test(start_paused = true)]
async fn no_limit_of_errors_is_raised_or_lifted_by_a_later_one() {
    let none = || no_delay().per_error_key(None).per_run(None);
    for (limit, larger, reason) in [
        (budget(3), budget(20), TerminalReason::ConsecutiveErrors),
        (
            none().per_run(2),
            none().per_run(20),
            TerminalReason::RunErrors,
        ),
        (
            none().per_error_key(2),
            none().per_error_key(20),
            TerminalReason::RetryBudget,
        ),
    ] {
        let run = Run::open();
        limit.limit_errors(&run);
        larger.limit_errors(&run);
        for _ in 0..3 {
            assert_eq!(run.terminal_reason(), None);
            none().limit_errors(&run);
            fails(&run, "a").await;
        }
        assert_eq!(run.terminal_reason(), Some(reason));
    }
}
