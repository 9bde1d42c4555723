//! The step window of a run while tools are in flight, and the windows of tools.

mod random;

use std::{
    future::{Future, pending},
    time::Duration,
};

use futures_util::future::join;
use tokio::time::{Instant, advance, sleep, timeout};
use tower::ServiceExt;
use tower_agent::{
    Limits, NodeKind, Run, RunEvent, RunNotice, Scope, StepTimeoutLayer, TerminalReason,
};

use crate::support::{
    DONE, PING, Place, ReadExt, Script, Stack, StackService, Upstream, chat, request, secs,
};

const WINDOW: Duration = secs(10);
const SSE: &str = "text/event-stream";

fn watched(script: Script) -> StackService {
    let layer = StepTimeoutLayer::new(WINDOW).scope(Scope::Run);
    let stack = Stack::default().layer(Place::Step, layer);
    stack.build(&Upstream::script(script))
}

/// A run whose first call, through a layer that limits the run, is over.
async fn run_with_window() -> Run {
    let run = Run::open();
    let stack = watched(Script::sse().data(chat("a")).data(DONE));
    stack.ask(run.attach(request())).await;
    run
}

/// Reads a call of `run` to its end, and answers the reason of a cut.
async fn call(run: &Run, script: Script) -> Option<TerminalReason> {
    let answer = watched(script).oneshot(run.attach(request())).await;
    answer.unwrap().into_body().read().await.reason()
}

/// The kind and the time of the end that stopped the tool.
async fn cut<T>(
    tool: impl Future<Output = Result<T, Box<tower_agent::Terminated>>>,
) -> (NodeKind, Duration) {
    let start = Instant::now();
    let Err(end) = timeout(secs(3_600), tool).await.expect("no limit") else {
        panic!("the tool finished");
    };
    assert_eq!(end.reason, TerminalReason::StepTimeout);
    (end.kind, start.elapsed())
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn the_runs_window_ends_a_hung_tool_and_the_run() {
    let run = run_with_window().await;

    let cut = cut(run.tool("hung").watch(pending::<()>())).await;

    assert_eq!(cut, (NodeKind::Run, WINDOW));
    assert_eq!(run.terminal_reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(run.in_flight(), 0);
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn the_runs_window_does_not_count_between_calls_and_tools() {
    let run = run_with_window().await;
    run.tool("quick").watch(sleep(secs(9))).await.unwrap();

    advance(WINDOW * 6).await;
    run.check().unwrap();
    run.tool("quick").watch(sleep(secs(9))).await.unwrap();

    assert_eq!(run.terminal_reason(), None);
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn the_runs_window_sees_the_progress_of_a_call_beside_a_tool() {
    let run = run_with_window().await;
    let busy = Script::sse().repeat(4, 6.0, chat("a")).data(DONE);

    let tool = run.tool("hung").watch(pending::<()>());
    let (read, cut) = join(call(&run, busy), cut(tool)).await;

    assert_eq!(read, None);
    assert_eq!(cut, (NodeKind::Run, secs(24) + WINDOW));
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn a_tool_that_finishes_restarts_the_runs_window_of_a_call() {
    let run = run_with_window().await;
    let start = Instant::now();
    let silent = Script::sse().repeat(40, 1.0, PING).never();

    let tool = run.tool("quick").watch(sleep(secs(6)));
    let (read, _) = join(call(&run, silent), tool).await;

    assert_eq!(read, Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(6) + WINDOW);
}

/// covers: A1, A13
#[tokio::test(start_paused = true)]
async fn a_long_tool_with_a_window_of_its_own_outlives_the_runs() {
    let run = run_with_window().await;
    let start = Instant::now();

    let build = run.tool("build").window(secs(30)).watch(sleep(secs(20)));
    let (read, built) = join(call(&run, Script::sse().never()), build).await;

    built.unwrap();
    assert_eq!(read, Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(20) + WINDOW, "the call counts anew");
}

/// covers: A1, A13
#[tokio::test(start_paused = true)]
async fn a_hung_tool_ends_by_its_own_window_alone() {
    let run = run_with_window().await;

    let hung = run.tool("hung").window(secs(30)).watch(pending::<()>());
    let (read, cut) = join(call(&run, Script::sse().never()), cut(hung)).await;

    assert_eq!(cut, (NodeKind::Tool, secs(30)));
    assert_eq!(read, Some(TerminalReason::StepTimeout));
}

/// covers: A1, A13
#[tokio::test(start_paused = true)]
async fn of_two_tools_the_one_with_a_window_stands_in_for_the_runs() {
    let run = run_with_window().await;

    let build = run.tool("build").window(secs(30)).watch(sleep(secs(20)));
    let hung = run.tool("hung").watch(pending::<()>());
    let (built, cut) = join(build, cut(hung)).await;

    built.unwrap();
    assert_eq!(cut, (NodeKind::Run, secs(20) + WINDOW));
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn a_dropped_tool_no_longer_stands_in_for_the_runs_window() {
    let run = run_with_window().await;
    let start = Instant::now();

    let build = timeout(
        secs(20),
        run.tool("build").window(secs(30)).watch(pending::<()>()),
    );
    // In two tasks: the drop must wake the call.
    let silent = tokio::spawn({
        let run = run.clone();
        async move { call(&run, Script::sse().never()).await }
    });
    build.await.unwrap_err();

    assert_eq!(silent.await.unwrap(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(20) + WINDOW);
}

/// covers: A1
#[tokio::test(start_paused = true)]
async fn a_tool_that_is_ready_at_once_or_never_polled_stands_in_for_nothing() {
    let run = run_with_window().await;
    let start = Instant::now();
    let _unpolled = run.tool("later").window(secs(30)).watch(pending::<()>());
    let ready = run.tool("ready").window(secs(30)).watch(async {});

    ready.await.unwrap();
    let read = call(&run, Script::sse().never()).await;

    assert_eq!(read, Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), WINDOW);
}

/// covers: A1, A11
#[tokio::test(start_paused = true)]
async fn a_pause_inside_a_tool_stops_the_runs_window() {
    let run = run_with_window().await;

    let tool = run.tool("ask").watch(async {
        sleep(secs(4)).await;
        let asking = run.pause();
        sleep(secs(60)).await;
        drop(asking);
        pending::<()>().await;
    });

    assert_eq!(cut(tool).await, (NodeKind::Run, secs(60) + WINDOW));
}

/// covers: A1, A11
#[tokio::test(start_paused = true)]
async fn a_pause_inside_a_tool_stops_its_own_window_too() {
    let run = run_with_window().await;

    let tool = run.tool("ask").window(secs(30)).watch(async {
        let asking = run.pause();
        sleep(secs(60)).await;
        drop(asking);
        pending::<()>().await;
    });
    let (read, cut) = join(call(&run, Script::sse().never()), cut(tool)).await;

    assert_eq!(cut, (NodeKind::Tool, secs(60 + 30)));
    assert_eq!(read, Some(TerminalReason::StepTimeout));
}

/// covers: A1, C9
#[tokio::test(start_paused = true)]
async fn a_hung_tool_of_a_sub_agent_ends_the_sub_agent() {
    let run = run_with_window().await;
    let child = run.child();

    let cut = cut(child.tool("hung").watch(pending::<()>())).await;

    assert_eq!(cut, (NodeKind::Run, WINDOW));
    assert_eq!(child.terminal_reason(), Some(TerminalReason::StepTimeout));
    assert_eq!(run.terminal_reason(), None);
}

/// covers: A1, C9
#[tokio::test(start_paused = true)]
async fn a_sub_agents_tool_stands_in_for_the_windows_of_all_runs_above_it() {
    let run = run_with_window().await;
    let child = run.child();

    let research = run.tool("research").watch(async {
        let build = child.tool("build").window(secs(30));
        build.watch(sleep(secs(20))).await.unwrap();
        pending::<()>().await;
    });

    assert_eq!(cut(research).await, (NodeKind::Run, secs(20) + WINDOW));
}

/// covers: A13
#[tokio::test(start_paused = true)]
async fn a_tool_inside_a_tool_does_not_stand_in_for_the_outer_tools_window() {
    let run = run_with_window().await;
    let child = run.child();

    let outer = run.tool("research").window(secs(15)).watch(async {
        let build = child.tool("build").window(secs(30));
        build.watch(pending::<()>()).await
    });

    assert_eq!(cut(outer).await, (NodeKind::Tool, secs(15)));
}

/// covers: A1, A12
#[tokio::test(start_paused = true)]
async fn a_shadow_window_of_the_run_sees_tools_and_ends_none() {
    let run = Run::open();
    let layer = StepTimeoutLayer::new(WINDOW).scope(Scope::Run).observe();
    let upstream = Upstream::script(Script::sse().data(chat("a")).data(DONE));
    let stack = Stack::default().layer(Place::Step, layer).build(&upstream);
    stack.ask(run.attach(request())).await;
    let mut events = run.subscribe();

    run.tool("slow").watch(sleep(secs(40))).await.unwrap();

    run.end(TerminalReason::Completed);
    let mut notices = 0;
    while let RunEvent::Notice { notice, .. } = events.next().await.unwrap() {
        notices += u32::from(matches!(notice, RunNotice::WouldHaveEnded { .. }));
    }
    assert_eq!(notices, 1);
}

/// covers: A1, A13
#[tokio::test(start_paused = true)]
async fn the_runs_tool_window_ends_a_tool_without_one_alone() {
    let run = run_with_window().await;
    run.tool_window(secs(30));
    let child = run.child();

    for run in [&run, &child] {
        let hung = cut(run.tool("hung").watch(pending::<()>())).await;
        assert_eq!(hung, (NodeKind::Tool, secs(30)));
    }
    let own = run.tool("own").window(secs(40));
    assert_eq!(
        cut(own.watch(pending::<()>())).await,
        (NodeKind::Tool, secs(40))
    );
    run.tool_window(Duration::ZERO);
    let cut = cut(run.tool("hung").watch(pending::<()>())).await;

    assert_eq!(cut, (NodeKind::Run, WINDOW));
}

/// covers: A5, A13
#[tokio::test(start_paused = true)]
async fn the_tool_window_of_a_request_holds_below_its_call() {
    for (of_request, expected) in [
        (secs(15), (NodeKind::Tool, secs(15))),
        (Duration::ZERO, (NodeKind::Run, WINDOW)),
    ] {
        let run = run_with_window().await;
        run.tool_window(secs(30));
        let mut request = run.attach(request());
        request.extensions_mut().insert(Limits {
            tool: Some(of_request),
            ..Limits::default()
        });
        let call = request.extensions().get::<Run>().unwrap().clone();
        let busy = Script::sse().repeat(3, 9.0, PING).never();
        let _answer = watched(busy).oneshot(request).await.unwrap();

        let of_call = cut(call.tool("hung").watch(pending::<()>())).await;

        assert_eq!(of_call, expected);
    }
}

/// covers: A5
#[tokio::test(start_paused = true)]
async fn zero_switches_a_window_off_for_one_request() {
    let off = Some(Duration::ZERO);
    let silent = || Script::before_head().wait(100.0).head(SSE).data(DONE);
    let stalling = || Script::sse().data(chat("a")).wait(100.0).data(DONE);
    let none = Limits::default();
    for (limits, before, after) in [
        (none, Some(5), Some(10)),
        (Limits { step: off, ..none }, None, None),
        (Limits { first: off, ..none }, None, Some(10)),
        (
            Limits {
                step: off,
                first: Some(secs(20)),
                ..none
            },
            Some(20),
            None,
        ),
        (
            Limits {
                step: Some(secs(30)),
                first: off,
                ..none
            },
            None,
            Some(30),
        ),
    ] {
        for (script, cut) in [(silent(), before), (stalling(), after)] {
            let layer = StepTimeoutLayer::new(WINDOW).first(secs(5));
            let upstream = Upstream::script(script);
            let stack = Stack::default().layer(Place::Step, layer).build(&upstream);
            let run = Run::open();
            let mut request = run.attach(request());
            request.extensions_mut().insert(limits);

            let outcome = stack.ask(request).await;

            assert_eq!(outcome.at, secs(cut.unwrap_or(100)), "{limits:?}");
            let reason = cut.map_or(TerminalReason::Completed, |_| TerminalReason::StepTimeout);
            assert_eq!(run.last_end(), Some(reason), "{limits:?}");
        }
    }
}

/// covers: A11
#[tokio::test(start_paused = true)]
async fn the_end_of_a_pause_wakes_a_task_that_waits_in_the_runs_window() {
    let run = run_with_window().await;
    let start = Instant::now();
    let silent = tokio::spawn({
        let run = run.clone();
        async move { call(&run, Script::sse().never()).await }
    });
    let tool = run.tool("ask").window(secs(300)).watch(async {
        sleep(secs(1)).await;
        let asking = run.child().pause();
        sleep(secs(60)).await;
        drop(asking);
    });
    tool.await.unwrap();

    assert_eq!(silent.await.unwrap(), Some(TerminalReason::StepTimeout));
    assert_eq!(start.elapsed(), secs(61) + WINDOW);
}
