//! What a tool may still do when its run has ended.
//!
//! covers: C11

use std::{
    convert::Infallible,
    future::{pending, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt};
use tower_agent::{HardCeilingLayer, NodeKind, Run, Scope, TerminalReason, ToolError};

use crate::support::{Script, Upstream, later, poll_once, request, secs};

const GRACE: Duration = Duration::from_millis(100);

/// Ends `run` after four seconds, from another task.
fn end_later(run: &Run) {
    let run = run.clone();
    later(4, move || run.end(TerminalReason::Aborted));
}

#[tokio::test(start_paused = true)]
async fn a_tool_cleans_up_within_its_grace_and_is_stopped_all_the_same() {
    let run = Run::open();
    let start = Instant::now();
    let mut cleaned = None;
    end_later(&run);

    let tool = run.tool("write").grace(GRACE).call(async {
        let reason = run.ended().await;
        sleep(Duration::from_millis(30)).await;
        cleaned = Some(reason);
        Ok::<_, Infallible>(7)
    });
    let end = tool.await.unwrap_err();

    assert!(matches!(&end, ToolError::Terminated(end) if end.kind == NodeKind::Run));
    assert_eq!(start.elapsed(), secs(4) + Duration::from_millis(30));
    assert_eq!(cleaned, Some(TerminalReason::Aborted));
    assert_eq!(run.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_does_not_stop_is_dropped_when_its_grace_is_over() {
    let run = Run::open();
    let start = Instant::now();
    end_later(&run);

    let tool = run.tool("write").grace(GRACE).watch(pending::<()>());
    let settled = async {
        let reason = run.settled().await;
        (reason, start.elapsed())
    };
    let (end, (reason, at)) = tokio::join!(tool, settled);

    assert_eq!(end.unwrap_err().reason, TerminalReason::Aborted);
    assert_eq!(start.elapsed(), secs(4) + GRACE);
    assert_eq!((reason, at), (TerminalReason::Aborted, secs(4) + GRACE));
}

#[tokio::test(start_paused = true)]
async fn a_clock_of_the_run_gives_grace_too() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let ceiling = HardCeilingLayer::new(secs(4)).scope(Scope::Run);
    let answer = ceiling
        .layer(upstream.clone())
        .oneshot(run.attach(request()));
    let mut body = answer.await.unwrap().into_body();
    let start = Instant::now();

    let tool = run.tool("write").grace(GRACE).watch(pending::<()>());
    let model = async {
        let cut = crate::support::ReadExt::next(&mut body).await;
        (cut.unwrap().is_err(), start.elapsed())
    };
    let (end, model) = tokio::join!(tool, model);

    assert_eq!(end.unwrap_err().reason, TerminalReason::HardCeiling);
    assert_eq!(start.elapsed(), secs(4) + GRACE);
    assert_eq!(model, (true, secs(4)), "a model call is dropped at once");
    assert!(upstream.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn its_own_window_gives_no_grace_and_a_run_that_is_over_starts_nothing() {
    let run = Run::open();
    let start = Instant::now();
    let tool = run.tool("write").window(secs(3)).grace(GRACE);
    let end = tool.watch(pending::<()>()).await.unwrap_err();
    assert_eq!((end.kind, start.elapsed()), (NodeKind::Tool, secs(3)));

    let tool = run
        .tool("write")
        .grace(GRACE)
        .watch(async { panic!("it began") });
    run.end(TerminalReason::Aborted);
    let () = tool.await.map_err(drop).unwrap_or_default();
    assert_eq!(start.elapsed(), secs(3));
}

#[tokio::test(start_paused = true)]
async fn grace_counts_from_the_end_and_is_not_spun_away() {
    let run = Run::open();
    let polls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&polls);
    let mut tool = Box::pin(run.tool("write").grace(secs(10)).watch(poll_fn(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Poll::<()>::Pending
    })));
    assert!(poll_once(&mut tool).is_pending());
    run.end(TerminalReason::Aborted);
    assert_eq!(run.in_flight(), 1);
    sleep(secs(4)).await;
    let start = Instant::now();

    tool.await.unwrap_err();

    assert_eq!(start.elapsed(), secs(6));
    let polls = polls.load(Ordering::SeqCst);
    assert!(polls <= 5, "{polls}");
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_dropped_has_no_grace() {
    let run = Run::open();
    let mut tool = Box::pin(run.tool("write").grace(GRACE).watch(pending::<()>()));
    assert!(poll_once(&mut tool).is_pending());
    run.end(TerminalReason::Aborted);
    assert!(poll_once(&mut tool).is_pending());
    assert_eq!(run.in_flight(), 1);

    drop(tool);

    assert_eq!(run.in_flight(), 0);
}
