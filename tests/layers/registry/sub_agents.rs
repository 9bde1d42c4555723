//! covers: C9

use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt};
use tower_agent::{
    HardCeilingLayer, RetryBudget, Run, RunRegistry, Scope, TerminalReason, TurnCapLayer,
};

use super::{id, opened, us};
use crate::support::{Outcome, Script, Upstream, call_of, reason_of, request, secs};

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
    let upstream = Upstream::script(Script::sse().never());
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

/// A run below a sub-agent's has no parent of its own to follow: its root has.
#[tokio::test(start_paused = true)]
async fn a_ceiling_passed_unseen_is_heeded_below_a_sub_agent_too() {
    let run = Run::open();
    let upstream = Upstream::script(Script::sse().never());
    let ceiling = HardCeilingLayer::new(secs(5)).scope(Scope::Run);
    let attached = run.attach(request());
    let _unread = ceiling.layer(upstream).oneshot(attached).await.unwrap();
    let below = run.child_asked(secs(10)).child();
    assert!(below.check().is_ok());
    sleep(secs(5)).await;

    let reason = below.check().unwrap_err().reason;

    assert_eq!(reason, TerminalReason::HardCeiling);
    assert_eq!(run.terminal_reason(), Some(reason));
}

#[tokio::test(start_paused = true)]
async fn a_childs_turns_and_its_cap_are_its_own() {
    let beside = |run: &Run| run.child_asked(secs(1));
    for open in [Run::child, Run::child_detached, beside] {
        let upstream = Upstream::script(Script::json().data("{}"));
        let (two, ten) = (TurnCapLayer::new(2), TurnCapLayer::new(10));
        let run = Run::open();
        let child = open(&run);
        for _ in 0..2 {
            for (cap, run) in [(two.clone(), &child), (ten.clone(), &run)] {
                let service = cap.layer(upstream.clone());
                Outcome::of(service.oneshot(run.attach(request())))
                    .await
                    .whole();
            }
        }
        assert_eq!((run.turns(), child.turns()), (2, 2));

        let one_more = two.layer(upstream.clone()).oneshot(child.attach(request()));
        let error = one_more.await.map(drop).unwrap_err();

        assert_eq!(reason_of(&error), Some(CAP));
        assert_eq!(child.terminal_reason(), Some(CAP));
        assert_eq!((run.terminal_reason(), run.turns()), (None, 2));
        assert_eq!(upstream.calls(), 4);
    }
}

#[tokio::test(start_paused = true)]
async fn a_childs_errors_and_their_limit_are_its_own() {
    let beside = |run: &Run| run.child_asked(secs(1));
    for open in [Run::child, Run::child_detached, beside] {
        let run = Run::open();
        RetryBudget::new()
            .per_error_key(None)
            .per_run(Some(3))
            .limit_errors(&run);
        let child = open(&run);
        RetryBudget::new()
            .per_error_key(None)
            .per_run(Some(1))
            .limit_errors(&child);
        let fails = async |run: &Run| {
            let failed = run.tool("t").call(async { Err::<(), _>("no") }).await;
            assert!(failed.is_err());
        };
        fails(&run).await;
        fails(&child).await;
        assert_eq!((run.snapshot().errors, child.snapshot().errors), (1, 1));
        fails(&child).await;

        assert_eq!(child.terminal_reason(), Some(TerminalReason::RunErrors));
        assert_eq!((run.terminal_reason(), run.snapshot().errors), (None, 1));
    }
}

/// A run of a session with a sub-agent of a sub-agent beside it, that works.
async fn registered(registry: &RunRegistry) -> (Run, Run, impl Sized) {
    let run = opened(registry, us(), "r", "s").await;
    let child = run.child().child_detached();
    let (working, _) = call_of(&child);
    (run, child, working)
}

#[tokio::test(start_paused = true)]
async fn a_child_beside_a_registered_run_is_of_its_owner_and_session() {
    let registry = RunRegistry::new();
    let (_, child, _working) = registered(&registry).await;
    assert_eq!(child.session().as_deref(), Some("s"));
    assert!(registry.get(us(), &child.id()).is_some());
    let theirs = tower_agent::Owner::of(b"key");
    assert!(registry.get(theirs, &child.id()).is_none());

    let aborted = registry.abort_session(us(), "s");

    assert_eq!(aborted, [id("r"), child.id()]);
    assert_eq!(child.terminal_reason(), Some(TerminalReason::Aborted));
    let unregistered = Run::open().child_detached();
    assert!(registry.get(us(), &unregistered.id()).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_reaches_a_child_beside_a_registered_run() {
    let shutdown = Some(TerminalReason::Shutdown);
    let registry = RunRegistry::new();
    let (run, child, _working) = registered(&registry).await;
    run.end(CAP);
    assert_eq!(child.terminal_reason(), None);

    assert_eq!(registry.shutdown(), 1);

    assert_eq!(child.terminal_reason(), shutdown);
    assert_eq!(run.child_detached().terminal_reason(), shutdown, "late");
}

#[tokio::test(start_paused = true)]
async fn a_drain_waits_for_a_child_beside_a_registered_run() {
    let registry = RunRegistry::new();
    let (_, child, working) = registered(&registry).await;
    let draining = tokio::spawn(registry.drain(secs(30)));
    sleep(secs(3)).await;
    assert!(!draining.is_finished());
    assert_eq!(child.terminal_reason(), None);
    assert!(child.check().is_err(), "nothing new");
    drop(working);

    assert_eq!(draining.await.unwrap(), 0);
    assert_eq!(child.terminal_reason(), Some(TerminalReason::Shutdown));
    assert_eq!(child.elapsed(), secs(3));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_child_that_its_opener_forgot() {
    let registry = RunRegistry::new();
    drop(registered(&registry).await);
    sleep(RunRegistry::IDLE).await;
    assert_eq!(registry.find_session("s").len(), 0, "idle");
    sleep(RunRegistry::REMEMBERED).await;
    assert!(registry.list().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_deep_chain_of_those_that_are_asked_stops_without_a_deep_stack() {
    let run = Run::open();
    let mut chain = vec![run.child_asked(secs(1))];
    for _ in 0..5000 {
        let next = chain[chain.len() - 1].child_asked(secs(1));
        chain.push(next);
    }
    assert!(chain[5000].check().is_ok());
    run.end(CAP);

    assert!(chain.iter().all(|run| run.terminal_reason() == Some(CAP)));
    // The last one first: how a chain is dropped is another matter.
    while chain.pop().is_some() {}
}

/// An agent that goes on as its own sub-agent holds the last run alone.
#[test]
fn a_deep_chain_of_those_that_are_asked_is_dropped_without_a_deep_stack() {
    let chain = || {
        let mut last = Run::open();
        for _ in 0..3000 {
            // Between two runs that are asked stands one that is not.
            last = last.child().child_asked(secs(1));
        }
        drop(last);
    };
    // A subscriber of another test may close 64 nested spans by recursion, which needs some stack.
    let thread = std::thread::Builder::new().stack_size(512 * 1024);
    thread.spawn(chain).unwrap().join().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_is_only_closing_asks_nobody_yet() {
    let run = Run::open();
    let child = run.child_asked(secs(1));
    let layer = TurnCapLayer::new(1).final_call(secs(60));
    let upstream = Upstream::script(Script::sse().never());
    let service = layer.layer(upstream);
    for _ in 0..2 {
        drop(service.clone().oneshot(run.attach(request())).await);
    }
    assert!(run.check().is_err(), "it is at its cap, and closing");

    assert!(child.check().is_ok());
    sleep(secs(30)).await;
    assert!(child.check().is_ok(), "its parent has not ended");
    run.end(CAP);
    assert!(child.check().is_err());
}

/// The task of the grandchild sleeps: only a wake tells it.
///
/// covers: C9, H17
#[tokio::test(start_paused = true)]
async fn an_end_wakes_and_drops_the_work_of_grandchildren() {
    for levels in [2, 5] {
        let registry = RunRegistry::new();
        let root = registry.open(us(), id("r"));
        let mut last = root.clone();
        for _ in 0..levels {
            last = last.child();
        }
        let upstream = Upstream::script(Script::before_head().never());
        let layer = HardCeilingLayer::new(secs(600));
        let call = layer
            .layer(upstream.clone())
            .oneshot(last.attach(request()));
        let call = tokio::spawn(call);
        tokio::task::yield_now().await;
        assert_eq!(upstream.calls(), 1);
        let began = tokio::time::Instant::now();

        registry.abort(us(), &id("r"));

        let error = call.await.unwrap().unwrap_err();
        assert_eq!(began.elapsed(), secs(0), "at level {levels}");
        assert_eq!(reason_of(&error), Some(TerminalReason::Aborted));
        assert_eq!(upstream.dropped().reason, Some(TerminalReason::Aborted));
        assert_eq!(root.in_flight(), 0);
    }
}
