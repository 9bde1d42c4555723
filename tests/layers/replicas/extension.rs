//! Limits of a run of several replicas that an operator raises at one of them.
//!
//! covers: H12, H4

use std::time::Duration;

use tower_agent::{
    Run, RunExtension, TokenCaps, TurnCapLayer, registry::store::InMemoryRunStore, run::PauseAtCap,
};

use futures_util::future::join_all;
use tokio::{task::JoinHandle, time::sleep};

use super::{Replica, heard, spawn};
use crate::support::{Outcome, healthy, secs};

#[tokio::test(start_paused = true)]
async fn the_store_is_asked_with_the_raised_cap_where_it_was_raised() {
    let store = InMemoryRunStore::new();
    let [one, two]: [Replica; 2] =
        std::array::from_fn(|_| Replica::new(&store, healthy(), |stack| stack.max_turns(3)));
    for replica in [&one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    heard().await;
    let run = one.run("r").unwrap();
    run.extend(RunExtension::new().turns(2)).unwrap();
    for _ in 0..3 {
        assert_eq!(one.ask("r").await.status, 200);
    }
    assert_eq!((run.turns(), run.snapshot().max_turns), (5, Some(5)));
    let refused = one.ask("r").await;
    assert_eq!(
        refused.header("x-terminal-reason"),
        Some("turn_cap_reached")
    );
    assert_eq!(run.terminated().unwrap().at_turn(), Some(5));
    assert_eq!(one.upstream.calls(), 4);
    heard().await;
    let refused = two.ask("r").await;
    assert_eq!(
        refused.header("x-terminal-reason"),
        Some("turn_cap_reached")
    );
}

/// A replica that has not had the run before.
fn another(store: &InMemoryRunStore) -> Replica {
    Replica::new(store, healthy(), |stack| {
        let pause = PauseAtCap::new().wait(Duration::ZERO);
        let tokens = TokenCaps::new().max_output_tokens(Some(1_000));
        stack
            .max_turns(TurnCapLayer::new(3).pause(pause))
            .token_caps(tokens.max_cost(Some(1.0)))
            .ceiling(secs(600))
    })
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_gets_the_run_later_has_what_was_added() {
    let store = InMemoryRunStore::new();
    let [one, two, three] = [(); 3].map(|()| another(&store));
    for status in [200, 200, 200, 503] {
        assert_eq!(one.ask("r").await.status, status);
    }
    let run = one.run("r").unwrap();
    let more = RunExtension::new().turns(1).tokens(50).cost(0.5);
    run.extend(more.time(secs(60))).unwrap();
    run.extend(RunExtension::new().turns(1)).unwrap();
    heard().await;

    assert_eq!(two.ask("r").await.status, 200);
    let [here, there] = [&run, &two.run("r").unwrap()].map(Run::snapshot);
    assert_eq!(there.max_turns, Some(5));
    assert_eq!(there.token_caps, here.token_caps);
    assert_eq!(there.deadlines, here.deadlines);

    assert_eq!(one.ask("r").await.status, 200, "it is the fifth");
    assert_eq!(three.ask("r").await.status, 503);
    assert_eq!(three.upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_added_at_two_replicas_is_added_once() {
    let store = InMemoryRunStore::new();
    let [one, two, three] = [(); 3].map(|()| another(&store));
    for replica in [&one, &two] {
        assert_eq!(replica.ask("r").await.status, 200);
    }
    for replica in [&one, &two] {
        let run = replica.run("r").unwrap();
        run.extend(RunExtension::new().turns(2)).unwrap();
    }
    heard().await;

    for status in [200, 200, 200, 503] {
        assert_eq!(three.ask("r").await.status, status);
    }
    assert_eq!(three.run("r").unwrap().snapshot().max_turns, Some(5));
}

#[tokio::test(start_paused = true)]
async fn a_suspended_run_is_suspended_at_a_replica_that_gets_it_later() {
    let store = InMemoryRunStore::new();
    let [one, two, three] = [(); 3].map(|()| another(&store));
    assert_eq!(one.ask("r").await.status, 200);
    assert!(one.run("r").unwrap().suspend());
    heard().await;

    let refused = two.ask("r").await;
    assert_eq!(refused.status, 503);
    let why = "The run is paused by its operator";
    assert!(refused.text.contains(why), "{}", refused.text);

    assert!(one.run("r").unwrap().resume());
    heard().await;
    assert_eq!(three.ask("r").await.status, 200);
}

/// Two replicas of a run of `turns` turns, of which one is taken; further ones wait.
async fn waiting(turns: u32) -> [Replica; 2] {
    let store = InMemoryRunStore::new();
    let replicas = [(); 2].map(|()| {
        Replica::new(&store, healthy(), |stack| {
            stack.max_turns(TurnCapLayer::new(turns).pause(PauseAtCap::new()))
        })
    });
    assert_eq!(replicas[0].ask("r").await.status, 200);
    replicas
}

async fn statuses(calls: Vec<JoinHandle<Outcome>>) -> Vec<u16> {
    let outcomes = join_all(calls).await.into_iter();
    let mut statuses: Vec<_> = outcomes.map(|outcome| outcome.unwrap().status).collect();
    statuses.sort_unstable();
    statuses
}

#[tokio::test(start_paused = true)]
async fn turns_that_were_held_at_two_replicas_go_on_for_as_many_as_were_added() {
    let [one, two] = waiting(1).await;
    let held = [&one, &one, &two, &two].map(|replica| spawn(replica, "r"));
    sleep(secs(5)).await;
    for replica in [&one, &two] {
        let run = replica.run("r").unwrap();
        run.extend(RunExtension::new().turns(2)).unwrap();
    }

    assert_eq!(statuses(held.into()).await, [200, 200, 503, 503]);
    assert_eq!(one.upstream.calls() + two.upstream.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn turns_that_were_suspended_at_two_replicas_keep_to_the_cap() {
    let [one, two] = waiting(2).await;
    assert!(one.run("r").unwrap().suspend());
    let held = [&one, &two].map(|replica| spawn(replica, "r"));
    sleep(secs(5)).await;
    for replica in [&one, &two] {
        assert!(replica.run("r").unwrap().resume());
    }

    assert_eq!(statuses(held.into()).await, [200, 503]);
    assert_eq!(one.upstream.calls() + two.upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_was_held_goes_on_without_a_store_that_is_lost() {
    let [one, two] = waiting(1).await;
    let held = spawn(&one, "r");
    sleep(secs(5)).await;
    one.store.cut();
    let run = one.run("r").unwrap();
    run.extend(RunExtension::new().turns(1)).unwrap();

    assert_eq!(held.await.unwrap().status, 200);
    one.store.mend();
    heard().await;
    assert_eq!(two.ask("r").await.status, 503);
}
