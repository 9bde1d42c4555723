//! covers: B4

use std::future::pending;

use futures_util::future::join;
use tokio::time::{advance, sleep};
use tower::{Layer, ServiceExt};
use tower_agent::{HardCeilingLayer, NodeKind, ProgressNotices, Run, Scope, TerminalReason};

use super::{Noticed, each};
use crate::support::{Script, Upstream, poll_once, request, secs};

#[tokio::test(start_paused = true)]
async fn a_tool_that_takes_long_is_told_of_at_exact_instants() {
    let run = Run::open();
    run.notices(ProgressNotices::new());
    let noticed = Noticed::of(&run);

    run.tool("search").watch(sleep(secs(200))).await.unwrap();
    sleep(secs(600)).await;
    run.end(TerminalReason::Aborted);

    let told = noticed.all().await;
    assert_eq!(told, each("tool_execution (search)", &[30, 90, 150]));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_unless_asked_for() {
    let run = Run::open();
    let off = Run::open();
    off.notices(ProgressNotices::new().after(secs(0)));
    let noticed = [&run, &off].map(Noticed::of);

    for run in [&run, &off] {
        run.tool("search").watch(sleep(secs(200))).await.unwrap();
        run.end(TerminalReason::Aborted);
    }

    for noticed in noticed {
        assert_eq!(noticed.all().await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn tools_at_the_same_time_have_each_its_own() {
    let run = Run::open();
    run.notices(ProgressNotices::new().at_most(2));
    let noticed = Noticed::of(&run);

    let first = run.tool("a").watch(sleep(secs(400)));
    let second = async {
        sleep(secs(10)).await;
        run.tool("b").watch(sleep(secs(35))).await
    };
    let (first, second) = join(first, second).await;
    first.unwrap();
    second.unwrap();
    run.end(TerminalReason::Aborted);

    let all = [(30, "a"), (40, "b"), (90, "a")];
    let all = all.map(|(at, name)| (at, format!("tool_execution ({name})")));
    assert_eq!(noticed.all().await, all);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_ends_as_the_notice_is_due_is_not_told_of() {
    let run = Run::open();
    run.notices(ProgressNotices::new());
    let noticed = Noticed::of(&run);

    run.tool("just").watch(sleep(secs(30))).await.unwrap();
    let cut = run.tool("cut").window(secs(30)).watch(pending::<()>());
    assert_eq!(cut.await.unwrap_err().kind, NodeKind::Tool);
    run.end(TerminalReason::Aborted);

    assert_eq!(noticed.all().await, []);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_as_the_notice_is_due_is_told_of_as_ended() {
    let run = Run::open();
    run.notices(ProgressNotices::new());
    let noticed = Noticed::of(&run);
    let upstream = Upstream::script(Script::sse().never());
    let ceiling = HardCeilingLayer::new(secs(30)).scope(Scope::Run);
    let answer = ceiling.layer(upstream).oneshot(run.attach(request()));
    let _body = answer.await.unwrap();

    let end = run.tool("search").watch(pending::<()>()).await.unwrap_err();

    assert_eq!(end.reason, TerminalReason::HardCeiling);
    assert_eq!(noticed.all().await, []);
}

#[tokio::test(start_paused = true)]
async fn who_looks_late_is_told_once() {
    let run = Run::open();
    run.notices(ProgressNotices::new());
    let noticed = Noticed::of(&run);
    let mut tool = Box::pin(run.tool("search").watch(sleep(secs(230))));
    assert!(poll_once(&mut tool).is_pending());
    // The clock of the one who tells starts with it.
    tokio::task::yield_now().await;

    advance(secs(200)).await;
    tool.await.unwrap();
    run.end(TerminalReason::Aborted);

    assert_eq!(noticed.all().await, each("tool_execution (search)", &[200]));
}

#[tokio::test(start_paused = true)]
async fn a_sub_agents_tools_are_told_of_as_the_run_asked() {
    let run = Run::open();
    run.notices(ProgressNotices::new().after(secs(5)).at_most(1));
    let child = run.child();
    let noticed = Noticed::of(&child);

    child.tool("search").watch(sleep(secs(60))).await.unwrap();
    child.end(TerminalReason::Aborted);

    assert_eq!(noticed.all().await, each("tool_execution (search)", &[5]));
}
