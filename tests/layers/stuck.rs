//! Runs that are alive and get nowhere.
//!
//! covers: A8

use std::{convert::Infallible, num::NonZeroU32};

use tower_agent::{Run, RunEvent, RunNotice, TerminalReason};

/// Runs a tool that is called with this.
async fn act(run: &Run, tool: &'static str, argument: u32) {
    let call = run.tool(tool).arguments(&[argument]);
    call.call(async { Ok::<_, Infallible>(()) }).await.unwrap();
}

/// covers: A9
#[tokio::test(start_paused = true)]
async fn five_equal_actions_look_stuck_and_another_begins_another_row() {
    let run = Run::open();
    for _ in 0..2 {
        for _ in 0..4 {
            act(&run, "status", 7).await;
        }
        act(&run, "status", 8).await;
        act(&run, "wait", 7).await;
    }
    for _ in 0..4 {
        act(&run, "status", 7).await;
    }
    assert!(!run.snapshot().stuck);

    act(&run, "status", 7).await;

    assert!(run.snapshot().stuck);
}

/// covers: A9
#[tokio::test(start_paused = true)]
async fn rounds_do_not_count_beside_actions_that_are_seen() {
    let run = Run::open();
    for round in 0..20 {
        run.heartbeat_at(round, "acting");
        act(&run, "status", u32::try_from(round).unwrap()).await;
    }
    assert!(!run.snapshot().stuck);
}

/// covers: A9
#[tokio::test(start_paused = true)]
async fn five_heartbeats_without_a_change_look_stuck_and_are_told_once() {
    let run = Run::open();
    let mut events = run.subscribe();
    for iteration in 0..4 {
        run.heartbeat_at(iteration, "polling");
    }
    assert!(!run.snapshot().stuck);
    run.state_change("a file was written");
    for iteration in 4..8 {
        run.heartbeat_at(iteration, "polling");
    }
    assert!(!run.snapshot().stuck, "the change began a new row");

    for iteration in 8..12 {
        run.heartbeat_at(iteration, "polling");
        assert!(run.snapshot().stuck);
    }

    run.end(TerminalReason::Aborted);
    let looks = events.next().await.unwrap();
    assert!(
        matches!(
            looks,
            RunEvent::Notice {
                notice: RunNotice::LooksStuck { repeats: 5 },
                ..
            }
        ),
        "{looks:?}"
    );
    let end = events.next().await.unwrap();
    assert!(matches!(end, RunEvent::Ended { .. }), "{end:?}");
}

/// covers: A9
#[tokio::test(start_paused = true)]
async fn a_run_that_is_told_to_ends_when_it_is_stuck() {
    let run = Run::open();
    run.end_when_stuck(NonZeroU32::new(3).unwrap());

    run.heartbeat_at(0, "a");
    run.heartbeat_at(1, "b");
    assert_eq!(run.terminal_reason(), None);
    run.heartbeat_at(2, "c");

    assert_eq!(run.terminal_reason(), Some(TerminalReason::Stuck));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_may_go_on_for_longer_looks_stuck_all_the_same() {
    let run = Run::open();
    run.end_when_stuck(NonZeroU32::new(8).unwrap());

    for iteration in 0..7 {
        run.heartbeat_at(iteration, "a");
    }
    assert!(run.snapshot().stuck);
    assert_eq!(run.terminal_reason(), None);
    run.heartbeat_at(7, "a");

    assert_eq!(run.terminal_reason(), Some(TerminalReason::Stuck));
}
