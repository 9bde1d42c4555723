use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt};
use tower_agent::{HardCeilingLayer, Run, RunRegistry, Scope, TerminalReason};

use super::{id, us};
use crate::support::{Script, call_of, request, secs};

const CAP: TerminalReason = TerminalReason::TurnCap;

#[test]
fn a_parents_end_ends_its_children_also_those_attached_later() {
    let run = Run::open();
    let child = run.child();
    let grandchild = child.child();
    run.end(CAP);
    let late = run.child();

    for run in [child, grandchild, late] {
        assert_eq!(run.terminal_reason(), Some(CAP));
    }
}

#[test]
fn a_childs_end_leaves_its_parent_alone() {
    for open in [Run::child, Run::child_detached, |run: &Run| {
        run.child_asked(secs(1))
    }] {
        let run = Run::open();
        assert!(open(&run).end(TerminalReason::Aborted));
        assert_eq!(run.terminal_reason(), None);
        assert!(run.check().is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_detached_child_lives_on_and_knows_whose_it_was() {
    let registry = RunRegistry::new();
    let run = registry.open(us(), id("r"));
    let child = run.child_detached();
    run.end(CAP);
    let late = run.child_detached();

    for child in [child, late] {
        assert_eq!(child.terminal_reason(), None);
        assert!(child.check().is_ok());
        assert_eq!(child.snapshot().parent, Some(id("r")));
    }
    assert_eq!(run.child().snapshot().parent, Some(id("r")));
    assert_eq!(run.snapshot().parent, None);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_asked_to_stop_finishes_what_it_does() {
    let run = Run::open();
    let child = run.child_asked(secs(10));
    let (working, call) = call_of(&child);
    let below = child.child();
    run.end(CAP);

    assert_eq!(child.terminal_reason(), None);
    assert_eq!(call.terminal_reason(), None);
    assert_eq!(child.check().unwrap_err().reason, CAP, "nothing new");
    assert_eq!(below.child().terminal_reason(), Some(CAP));
    sleep(secs(3)).await;
    drop(working);

    assert_eq!(child.terminal_reason(), Some(CAP));
    assert_eq!(child.elapsed(), secs(3));
}

#[tokio::test(start_paused = true)]
async fn its_grace_is_the_longest_it_takes() {
    let run = Run::open();
    let child = run.child_asked(secs(10));
    let (_working, call) = call_of(&child);
    sleep(secs(5)).await;
    run.end(CAP);

    let began = Instant::now();
    let ended = child.wait(RunRegistry::WAIT).await.unwrap();

    assert_eq!(began.elapsed(), secs(10));
    assert_eq!(ended.reason, Some(CAP));
    assert_eq!(call.terminal_reason(), Some(CAP));
}

#[tokio::test(start_paused = true)]
async fn a_child_that_does_nothing_ends_with_who_asks_it_however_deep() {
    let run = Run::open();
    let child = run.child_asked(secs(10));
    let grandchild = child.child_asked(secs(10));
    run.end(CAP);
    let late = run.child_asked(secs(10));

    for run in [child, grandchild, late] {
        assert_eq!(run.terminal_reason(), Some(CAP));
    }
}

#[tokio::test(start_paused = true)]
async fn a_parent_whose_ceiling_passed_unseen_is_heeded_before_anything_starts() {
    let run = Run::open();
    let (upstream, _) = Script::sse().never().upstream();
    let ceiling = HardCeilingLayer::new(secs(5)).scope(Scope::Run);
    let attached = run.attach(request());
    let _unread = ceiling.layer(upstream).oneshot(attached).await.unwrap();
    let child = run.child_asked(secs(10));
    assert!(child.check().is_ok());
    sleep(secs(5)).await;

    let reason = child.check().unwrap_err().reason;

    assert_eq!(reason, TerminalReason::HardCeiling);
    assert_eq!(run.terminal_reason(), Some(reason));
}
