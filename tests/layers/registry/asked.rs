//! Sub-agents of a deep chain, and those who are asked within another end.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Context, Wake, Waker},
};

use tokio::time::sleep;
use tower::{Layer, ServiceExt};
use tower_agent::{HardCeilingLayer, Run, Scope, TerminalReason};

use crate::support::{Script, Upstream, poll_once, request, secs};

const CAP: TerminalReason = TerminalReason::TurnCap;

/// When woken, ends a run and looks at its sub-agent.
struct Looks {
    run: Run,
    child: Run,
    seen: OnceLock<Option<TerminalReason>>,
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.run.end(CAP);
        let _seen_before = self.seen.set(self.child.terminal_reason());
    }
}

#[test]
fn whoever_is_woken_by_one_end_may_bring_about_another() {
    let (run, other) = (Run::open(), Run::open());
    let child = run.child_asked(secs(1));
    let looks = Arc::new(Looks {
        child: other.child_asked(secs(1)),
        run: other,
        seen: OnceLock::new(),
    });
    let waker = Waker::from(Arc::clone(&looks));
    let mut ended = pin!(child.ended());
    let polled = ended.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());

    run.end(TerminalReason::Aborted);

    assert_eq!(looks.seen.get(), Some(&Some(CAP)), "asked by then");
}

#[tokio::test(start_paused = true)]
async fn the_last_of_a_deep_chain_of_children_reads_the_clocks_of_all() {
    let run = Run::open();
    let attached = HardCeilingLayer::new(secs(5)).scope(Scope::Run);
    let upstream = Upstream::script(Script::sse().never());
    let answered = attached.layer(upstream).oneshot(run.attach(request()));
    let _unread = answered.await.unwrap();
    let mut chain = vec![run.child()];
    for _ in 0..5000 {
        let next = chain[chain.len() - 1].child();
        chain.push(next);
    }
    assert!(chain[5000].check().is_ok());
    sleep(secs(5)).await;

    let ended = chain[5000].check().unwrap_err();

    assert_eq!(ended.reason, TerminalReason::HardCeiling);
    assert_eq!(run.terminal_reason(), Some(TerminalReason::HardCeiling));
    // The last one first: how a chain is dropped is another matter.
    while chain.pop().is_some() {}
}

#[tokio::test(start_paused = true)]
async fn a_deep_chain_of_children_is_shown_and_dropped_without_a_deep_stack() {
    let run = Run::open();
    let mut last = run.child();
    for _ in 0..5000 {
        last = last.child();
    }
    let working = last.tool("search").watch(std::future::pending::<()>());
    let mut working = Box::pin(working);
    assert!(poll_once(&mut working).is_pending());
    sleep(secs(60)).await;

    assert!(run.snapshot().alive, "a tool works");
    drop(working);
    drop(run);
    drop(last);
}
