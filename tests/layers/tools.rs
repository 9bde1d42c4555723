use std::{convert::Infallible, future::pending, pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::future::{join, join_all};
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, advance, sleep};
use tower::{Layer, ServiceExt, service_fn};
use tower_agent::{
    BoxError, HardCeilingLayer, NodeKind, Owner, Run, RunRegistry, Scope, TerminalReason, ToolError,
};

use crate::support::{Script, Upstream, later, poll_once, reason_of, request, secs};

const WINDOW: Duration = secs(10);

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[tokio::test(start_paused = true)]
async fn a_tools_result_is_handed_on_and_its_error_leaves_the_run_alive() {
    let run = Run::open();

    let found = run
        .tool("read")
        .call(async { Ok::<_, Infallible>(7) })
        .await;
    let failed = run
        .tool("read")
        .call(async { Err::<(), _>("no such file") })
        .await;

    assert_eq!(found.unwrap(), 7);
    assert!(matches!(failed, Err(ToolError::Failed("no such file"))));
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn a_tools_window_ends_the_tool_alone() {
    let run = Run::open();
    let start = Instant::now();

    let cut = run.tool("slow").window(WINDOW).watch(pending::<()>()).await;

    let end = cut.unwrap_err();
    assert_eq!(
        (end.kind, end.reason.clone()),
        (NodeKind::Tool, TerminalReason::StepTimeout)
    );
    assert_eq!(start.elapsed(), WINDOW);
    assert_eq!(run.terminal_reason(), None);
    assert!(
        end.message()
            .starts_with("The tool was stopped after 10s: nothing happened for 10s"),
        "{}",
        end.message()
    );
}

/// covers: A13
#[tokio::test(start_paused = true)]
async fn each_concurrent_tool_has_a_window_of_its_own() {
    let run = Run::open();
    let start = Instant::now();
    let tools = [10, 30, 20].map(|seconds| {
        let tool = run.tool("t").window(secs(seconds)).watch(pending::<()>());
        async move {
            let end = tool.await.unwrap_err();
            (end.kind, start.elapsed())
        }
    });

    let ends = join_all(tools).await;

    assert_eq!(ends, [10, 30, 20].map(|at| (NodeKind::Tool, secs(at))));
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn of_equal_windows_of_tool_and_run_ceiling_the_run_wins() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let ceiling = HardCeilingLayer::new(WINDOW)
        .scope(Scope::Run)
        .layer(upstream);
    let body = ceiling.oneshot(run.attach(request())).await.unwrap();

    let end = run
        .tool("slow")
        .window(WINDOW)
        .watch(pending::<()>())
        .await
        .unwrap_err();

    assert_eq!(
        (end.kind, end.reason.clone()),
        (NodeKind::Run, TerminalReason::HardCeiling)
    );
    drop(body);
}

#[tokio::test(start_paused = true)]
async fn the_runs_end_drops_a_tool_and_the_reason_is_there_before() {
    let run = Run::open();
    let seen = std::sync::Mutex::new(None);
    let start = Instant::now();
    let tool = run.tool("slow").watch(async {
        let _guard =
            OnDrop(|| *seen.lock().unwrap() = Some((run.terminal_reason(), start.elapsed())));
        pending::<()>().await;
    });

    later(4, {
        let run = run.clone();
        move || run.end(TerminalReason::Aborted)
    });
    let end = tool.await;

    assert_eq!(end.unwrap_err().kind, NodeKind::Run);
    assert_eq!(
        seen.into_inner().unwrap(),
        Some((Some(TerminalReason::Aborted), secs(4)))
    );
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_tool_starts_under_an_ended_run() {
    let run = Run::open();
    run.end(TerminalReason::TurnCap);
    let mut polled = false;

    let end = run.tool("late").call(async {
        polled = true;
        Ok::<_, Infallible>(())
    });
    let error = end.await.unwrap_err();

    assert!(matches!(&error, ToolError::Terminated(end) if end.reason == TerminalReason::TurnCap));
    assert!(!polled);
}

#[tokio::test(start_paused = true)]
async fn no_tool_starts_under_a_run_whose_ceiling_passed_unseen() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().data(crate::support::DONE));
    let ceiling = HardCeilingLayer::new(WINDOW)
        .scope(Scope::Run)
        .layer(upstream);
    drop(ceiling.oneshot(run.attach(request())).await.unwrap());
    advance(WINDOW).await;
    let mut polled = false;

    let end = run
        .tool("late")
        .watch(async { polled = true })
        .await
        .unwrap_err();

    assert_eq!(end.reason, TerminalReason::HardCeiling);
    assert!(!polled);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_tool_settles_as_aborted_and_leaves_the_run() {
    let run = Run::open();
    let mut tool = Box::pin(run.tool("slow").watch(pending::<()>()));
    assert!(poll_once(&mut tool).is_pending());
    assert_eq!(run.in_flight(), 1);

    drop(tool);

    assert_eq!(run.in_flight(), 0);
    assert_eq!(run.terminal_reason(), None);
}

/// covers: A11
#[tokio::test(start_paused = true)]
async fn a_pause_stops_a_tools_window() {
    let run = Run::open();
    let start = Instant::now();
    let tool = run.tool("ask").window(WINDOW).watch(pending::<()>());

    tokio::spawn(async move {
        sleep(secs(4)).await;
        let guard = run.pause();
        sleep(secs(100)).await;
        drop(guard);
    });
    let end = tool.await;

    assert_eq!(end.unwrap_err().reason, TerminalReason::StepTimeout);
    assert_eq!(start.elapsed(), secs(100) + WINDOW);
}

#[tokio::test(start_paused = true)]
async fn a_result_in_the_very_instant_of_the_window_is_a_result() {
    let run = Run::open();

    let result = run.tool("just").window(WINDOW).watch(async {
        sleep(WINDOW).await;
        5
    });

    assert_eq!(result.await.unwrap(), 5);
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn a_finished_tool_is_a_step_of_its_run() {
    let run = Run::open();
    sleep(secs(3)).await;

    run.tool("read").watch(async {}).await.unwrap();
    sleep(secs(2)).await;

    let snapshot = run.snapshot();
    assert_eq!(
        snapshot.last_step.unwrap().to_string(),
        "tool_complete (read)"
    );
    assert_eq!(snapshot.progress.last_change_ago, Some(secs(2)));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_tool_is_found_however_the_handler_hands_it_up() {
    async fn handler(run: &Run) -> Result<(), BoxError> {
        run.tool("slow")
            .window(WINDOW)
            .call(async { pending::<Result<(), Infallible>>().await })
            .await?;
        Ok(())
    }
    async fn watcher(run: &Run) -> Result<(), BoxError> {
        run.tool("slow")
            .window(WINDOW)
            .watch(pending::<()>())
            .await?;
        Ok(())
    }
    let run = Run::open();

    let called = handler(&run).await.unwrap_err();
    let watched = watcher(&run).await.unwrap_err();

    assert_eq!(reason_of(&called), Some(TerminalReason::StepTimeout));
    assert_eq!(
        reason_of(&watched),
        Some(TerminalReason::StepTimeout),
        "the error of `watch` is a box"
    );
}

#[tokio::test(start_paused = true)]
async fn a_tool_of_a_call_ends_with_the_call() {
    let run = Run::open();
    let request = run.attach(request());
    let call = request.extensions().get::<Run>().unwrap().clone();
    let tool = call.tool("inner").watch(pending::<()>());

    later(1, || drop(request));
    let end = tool.await;

    let end = end.unwrap_err();
    assert_eq!(
        (end.kind, end.reason.clone()),
        (NodeKind::Call, TerminalReason::Aborted)
    );
    assert_eq!(run.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_ends_after_its_wait_in_the_first_poll_of_its_call_wakes_the_task() {
    let run = Run::open();
    let start = Instant::now();
    let service = service_fn(|request: Request<()>| {
        let agent = request.extensions().get::<Run>().unwrap().child();
        async move {
            let tool = agent.tool("slow").watch(pending::<()>());
            let (cut, ()) = join(tool, async {
                agent.end(TerminalReason::Aborted);
            })
            .await;
            Err::<Response<Full<Bytes>>, BoxError>(cut.unwrap_err())
        }
    });

    let call = HardCeilingLayer::new(WINDOW).layer(service);
    let error = call
        .oneshot(run.attach(Request::new(())))
        .await
        .unwrap_err();

    assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_tool_error_reads_well_and_keeps_its_source() {
    let run = Run::open();
    let failed = run
        .tool("t")
        .call(async { Err::<(), _>("boom") })
        .await
        .unwrap_err();
    run.end(TerminalReason::Aborted);
    let cut: ToolError<&str> = run.tool("t").call(async { Ok(()) }).await.unwrap_err();

    assert_eq!(failed.to_string(), "tool failed: boom");
    assert!(cut.to_string().starts_with("tool was stopped: run "));
    assert_eq!(TerminalReason::find(&cut), Some(&TerminalReason::Aborted));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_its_window_ends_while_the_run_drains_is_an_error_of_the_run() {
    for drains in [false, true] {
        let registry = RunRegistry::new();
        let run = registry.open(Owner::default(), "r-1".parse().unwrap());
        let mut slow = pin!(run.tool("slow").window(WINDOW).watch(pending::<()>()));
        let other = run.tool("other").watch(sleep(secs(20)));
        assert!(poll_once(&mut slow).is_pending());
        let drained = drains.then(|| registry.drain(secs(60)));

        let (end, _) = join(slow, other).await;

        assert_eq!(end.unwrap_err().reason, TerminalReason::StepTimeout);
        assert_eq!(run.snapshot().errors, 1, "drains: {drains}");
        drop(drained);
    }
}
