//! Runs that an operator suspends, and lets go on.

use tokio::time::sleep;
use tower_agent::{
    AgentStack, Run, RunEvent, RunNotice, TerminalReason, TurnCapLayer, run::PauseAtCap,
};

use super::{Served, turns};
use crate::support::{DONE, FINISH, PRELUDE, Script, chat, secs};

fn served() -> Served {
    Served::new(Script::json().data("{}"), AgentStack::always_count)
}

#[tokio::test(start_paused = true)]
async fn new_turns_wait_and_calls_in_flight_go_on() {
    let script = Script::sse()
        .data(PRELUDE)
        .data(chat("a"))
        .wait(500.0)
        .data(FINISH)
        .data(DONE);
    // Its window of 100 s stands still while the stream is silent.
    let served = Served::new(script, |stack| stack.always_count().run_step(secs(100)));
    let served = served.streaming();
    let mut events = served.registry.subscribe();
    let under_way = served.spawn("a").await;
    let run = served.run();
    assert!(run.suspend());
    assert!(!run.suspend(), "it is no news");
    let held = served.spawn("b").await;
    assert_eq!(served.pause(), Some((None, 1)));
    let refused = held.await.unwrap();
    assert_eq!((refused.status, refused.at), (503, secs(60)));
    assert!(
        refused
            .text
            .contains("The run is paused by its operator (run_paused)")
    );
    let outcome = under_way.await.unwrap();
    assert_eq!((outcome.status, outcome.at), (200, secs(500)));
    let held = served.spawn("c").await;
    assert!(run.resume());
    assert!(!run.resume());
    sleep(secs(1)).await;
    assert_eq!(served.upstream.calls(), 2);
    assert_eq!(served.pause(), None);
    held.abort();
    let mut told = Vec::new();
    while told.len() < 3 {
        if let Some(RunEvent::Notice { notice, .. }) = events.next().await {
            told.push(notice);
        }
    }
    let message = "the operator has suspended it".to_owned();
    let paused = RunNotice::Paused { cap: None, message };
    assert_eq!(told, [RunNotice::Opened, paused, RunNotice::Resumed]);
}

#[tokio::test(start_paused = true)]
async fn its_ceiling_goes_on() {
    let served = Served::new(Script::json().data("{}"), |stack| {
        stack.always_count().ceiling(secs(30))
    });
    assert_eq!(served.turn("a").await.status, 200);
    assert!(served.run().suspend());
    let outcome = served.turn("b").await;
    assert_eq!(outcome.header("x-terminal-reason"), Some("max_turn_time"));
    assert_eq!(outcome.at, secs(30));
    assert!(!served.run().resume(), "the end has undone it");
    assert!(!served.run().suspend(), "it has ended");
}

#[tokio::test(start_paused = true)]
async fn a_suspended_run_does_not_complete_for_being_idle_but_by_its_program() {
    let served = served();
    assert_eq!(served.turn("a").await.status, 200);
    let run = served.run();
    assert!(run.suspend());
    sleep(secs(1_000_000)).await;
    assert_eq!(served.registry.open_runs(), 1);
    assert_eq!(run.terminal_reason(), None);
    run.complete();
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_resume_by_hand_lifts_no_cap_and_an_extension_no_suspension() {
    let served = Served::pausing(1);
    assert_eq!(served.turn("a").await.status, 200);
    assert_eq!(served.turn("b").await.status, 503);
    let run = served.run();
    assert!(!run.resume(), "it is not suspended");
    assert!(run.suspend());
    let paused = run.snapshot().paused.unwrap();
    assert!(paused.suspended && paused.cap.is_some());
    let held = served.spawn("c").await;
    run.extend(turns(1)).unwrap();
    sleep(secs(1)).await;
    assert_eq!(
        (served.upstream.calls(), served.pause()),
        (1, Some((None, 1)))
    );
    assert!(run.resume());
    assert_eq!(held.await.unwrap().status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_suspension_below_gives_its_windows_back_with_the_end() {
    let run = Run::open();
    let child = run.child();
    assert!(child.suspend());
    child.end(TerminalReason::Aborted);
    assert_eq!(child.snapshot().paused, None);
    assert!(!child.resume());
    let layer = TurnCapLayer::new(1).pause(PauseAtCap::new());
    assert!(format!("{layer:?}").contains("PauseAtCap"));
}
