//! Turns that were held, and what the store answers when they go on.
//!
//! covers: H12, H4

use tokio::time::sleep;
use tower_agent::{
    RunExtension, TerminalReason, TurnCapLayer, registry::store::InMemoryRunStore, run::PauseAtCap,
};

use super::{Replica, heard, spawn};
use crate::support::{healthy, secs};

fn pausing(store: &InMemoryRunStore, turns: u32) -> Replica {
    Replica::new(store, healthy(), |stack| {
        stack.max_turns(TurnCapLayer::new(turns).pause(PauseAtCap::new()))
    })
}

fn extend(replica: &Replica, turns: u32) {
    let run = replica.run("r").unwrap();
    run.extend(RunExtension::new().turns(turns)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_held_turn_of_a_run_that_has_ended_elsewhere_gets_that_end() {
    let store = InMemoryRunStore::new();
    let [one, two] = [(); 2].map(|()| pausing(&store, 1));
    assert_eq!(one.ask("r").await.status, 200);
    let held = [&one, &one].map(|replica| spawn(replica, "r"));
    sleep(secs(5)).await;
    // The news is on its way to this replica.
    one.listener.abort();
    heard().await;
    two.abort("r");
    extend(&one, 1);
    sleep(secs(1)).await;

    assert_eq!(one.reason("r"), Some(TerminalReason::Aborted));
    for outcome in held {
        let outcome = outcome.await.unwrap();
        assert_eq!(outcome.header("x-terminal-reason"), Some("aborted"));
    }
    assert_eq!(one.upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_held_turn_of_a_run_that_has_ended_elsewhere_at_a_cap_is_not_paused_again() {
    let store = InMemoryRunStore::new();
    let one = pausing(&store, 1);
    let two = Replica::new(&store, healthy(), |stack| stack.max_turns(1));
    assert_eq!(one.ask("r").await.status, 200);
    let held = [&one, &one].map(|replica| spawn(replica, "r"));
    sleep(secs(5)).await;
    one.listener.abort();
    heard().await;
    assert_eq!(two.ask("r").await.status, 422);
    extend(&one, 2);
    sleep(secs(1)).await;

    assert_eq!(one.reason("r"), Some(TerminalReason::TurnCap));
    for outcome in held {
        let outcome = outcome.await.unwrap();
        let reason = outcome.header("x-terminal-reason");
        assert_eq!(reason, Some("turn_cap_reached"));
        assert!(outcome.text.contains("1 turn"), "{}", outcome.text);
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_turn_learns_what_was_added_elsewhere() {
    let store = InMemoryRunStore::new();
    let [one, two] = [(); 2].map(|()| pausing(&store, 2));
    for replica in [&one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    assert!(two.run("r").unwrap().suspend());
    let held = spawn(&two, "r");
    sleep(secs(5)).await;
    extend(&one, 2);
    heard().await;
    assert!(two.run("r").unwrap().resume());

    assert_eq!(held.await.unwrap().status, 200);
    let [here, there] = [&one, &two].map(|it| it.run("r").unwrap().snapshot());
    assert_eq!((here.max_turns, there.max_turns), (Some(4), Some(4)));
}

#[tokio::test(start_paused = true)]
async fn a_held_turn_learns_which_run_it_is_of() {
    let store = InMemoryRunStore::new();
    let one = pausing(&store, 1);
    one.store.cut();
    assert_eq!(one.ask("r").await.status, 200);
    assert_eq!(one.run("r").unwrap().snapshot().incarnation, None);
    let held = spawn(&one, "r");
    sleep(secs(5)).await;
    one.listener.abort();
    one.store.mend();
    extend(&one, 1);

    assert_eq!(held.await.unwrap().status, 200);
    assert!(one.run("r").unwrap().snapshot().incarnation.is_some());
}
