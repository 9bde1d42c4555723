//! The caps of an owner hold for the sum of all replicas, for requests with and without a run's id.

use std::collections::HashSet;

use tower_agent::{OwnerCaps, TokenCaps};

use tokio::time::Instant;

use super::{
    tokens::{frames, of_tokens, ten_a_second},
    *,
};
use crate::periods::PausedCalendar;

const HOUR: Duration = Duration::from_secs(61 * 60);

fn of_turns(turns: u32) -> OwnerCaps {
    OwnerCaps::new().turns_per_hour(turns)
}

fn of_runs(runs: u32) -> OwnerCaps {
    OwnerCaps::new().max_open_runs(runs)
}

fn of_output(tokens: u32) -> OwnerCaps {
    OwnerCaps::new().tokens_per_hour(TokenCaps::new().max_output_tokens(tokens))
}

impl Replica {
    async fn unnamed(&self) -> Outcome {
        self.send(prompt("a")).await
    }

    fn spawn_unnamed(&self) -> tokio::task::JoinHandle<Outcome> {
        tokio::spawn(Outcome::of(self.service.clone().oneshot(prompt("a"))))
    }
}

fn count(outcomes: &[Outcome], status: u16) -> usize {
    outcomes.iter().filter(|it| it.status == status).count()
}

#[tokio::test(start_paused = true)]
async fn sixty_at_once_on_three_replicas_share_thirty_turns_of_an_hour() {
    for named in [false, true] {
        let replicas: [Replica; 3] = replicas(&slow(5.0), |stack| stack.owner_caps(of_turns(30)));
        let calls = (0..60).map(|call| {
            let replica = &replicas[call % 3];
            async move {
                match named {
                    true => replica.ask(&format!("r-{}", call % 7)).await,
                    false => replica.unnamed().await,
                }
            }
        });
        let outcomes = join_all(calls).await;
        assert_eq!(count(&outcomes, 200), 30, "{named}");
        assert_eq!(count(&outcomes, 422), 30, "{named}");
        let calls: usize = replicas.iter().map(|it| it.upstream.calls()).sum();
        assert_eq!(calls, 30, "{named}");
        let questions: usize = replicas.iter().map(|it| it.store.questions()).sum();
        assert_eq!(questions, 60, "one a request");
        let refused = outcomes.iter().find(|it| it.status == 422).unwrap();
        assert!(refused.text.contains("30 turns"), "{}", refused.text);
    }
}

#[tokio::test(start_paused = true)]
async fn turns_one_after_the_other_use_up_one_hour_and_come_back_after_it() {
    let [one, two] = replicas(&healthy(), |stack| stack.owner_caps(of_turns(5)));
    let mut served = 0;
    for call in 0..10 {
        let replica = if call % 2 == 0 { &one } else { &two };
        served += usize::from(replica.unnamed().await.status == 200);
    }
    assert_eq!(served, 5);
    // Those of the first minute count until the last of its turns is an hour old.
    sleep(secs(59 * 60)).await;
    assert_eq!(one.unnamed().await.status, 422);
    sleep(secs(2 * 60)).await;
    for replica in [&one, &two, &one, &two, &two] {
        assert_eq!(replica.unnamed().await.status, 200);
    }
    assert_eq!(one.unnamed().await.status, 422);
}

#[tokio::test(start_paused = true)]
async fn clocks_of_replicas_need_not_agree() {
    let store = InMemoryRunStore::new();
    let set = |stack: AgentStack<Server>| stack.owner_caps(of_turns(3));
    let one = Replica::new(&store, healthy(), set);
    sleep(secs(90 * 60 + 17)).await;
    let two = Replica::new(&store, healthy(), set);
    assert_eq!(two.unnamed().await.status, 200);
    assert_eq!(one.unnamed().await.status, 200);
    sleep(secs(30 * 60)).await;
    assert_eq!(one.unnamed().await.status, 200);
    assert_eq!(two.unnamed().await.status, 422);
    sleep(secs(31 * 60)).await;
    // Only the turn of half an hour ago counts.
    let statuses = [
        two.unnamed().await,
        two.unnamed().await,
        one.unnamed().await,
    ];
    assert_eq!(statuses.map(|it| it.status), [200, 200, 422]);
}

#[tokio::test(start_paused = true)]
async fn open_runs_hold_for_all_replicas_with_and_without_ids() {
    let replicas: [Replica; 3] = replicas(&slow(60.0), |stack| stack.owner_caps(of_runs(4)));
    let mut calls = Vec::new();
    for replica in &replicas[..2] {
        calls.push(replica.spawn_unnamed());
    }
    calls.push(spawn(&replicas[2], "named"));
    calls.push(spawn(&replicas[0], "other"));
    sleep(secs(1)).await;
    for replica in &replicas {
        let refused = replica.unnamed().await;
        assert_eq!(refused.status, 422);
        assert!(refused.text.contains("4 open runs"), "{}", refused.text);
        assert_eq!(replica.ask("another").await.status, 422);
    }
    // A run that is open goes on everywhere, and counts once.
    let further = [spawn(&replicas[1], "named"), spawn(&replicas[2], "named")];
    sleep(secs(1)).await;
    assert_eq!(replicas.each_ref().map(|it| it.upstream.calls()), [2, 2, 2]);
    for call in calls.into_iter().chain(further) {
        assert_eq!(call.await.unwrap().status, 200);
    }
    heard().await;
    // The two runs without an id are over.
    let free = [replicas[2].spawn_unnamed(), replicas[1].spawn_unnamed()];
    sleep(secs(1)).await;
    assert_eq!(replicas[0].unnamed().await.status, 422);
    for call in free {
        assert_eq!(call.await.unwrap().status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn sixty_runs_at_once_share_the_places_and_one_that_closes_frees_its_place() {
    let replicas: [Replica; 3] = replicas(&endless(), |stack| stack.owner_caps(of_runs(30)));
    let calls: Vec<_> = (0..60)
        .map(|call| replicas[call % 3].spawn_unnamed())
        .collect();
    sleep(secs(5)).await;
    let served: usize = replicas.iter().map(|it| it.upstream.calls()).sum();
    assert_eq!(served, 30);
    assert_eq!(replicas[2].unnamed().await.status, 422);
    let held = calls.iter().position(|call| !call.is_finished()).unwrap();
    calls[held].abort();
    heard().await;
    let elsewhere = &replicas[(held + 1) % 3];
    let freed = elsewhere.spawn_unnamed();
    sleep(secs(1)).await;
    assert!(!freed.is_finished(), "it has the place");
    assert_eq!(elsewhere.unnamed().await.status, 422);
    freed.abort();
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn two_streams_of_one_owner_spend_one_hour() {
    let [one, two, three] = replicas(&ten_a_second(), |stack| stack.owner_caps(of_output(205)));
    let first = one.spawn_unnamed();
    sleep(Duration::from_millis(5500)).await;
    let outcomes = join_all([first, spawn(&two, "r")]).await;
    let outcomes: Vec<_> = outcomes.into_iter().map(Result::unwrap).collect();
    heard().await;
    let sum: usize = outcomes.iter().map(frames).sum();
    // Each learns with its own frames, a second apart, what the other has spent.
    assert!((20..=23).contains(&sum), "{sum}");
    for outcome in &outcomes {
        assert_eq!(outcome.reason, Some(TerminalReason::TokenCap));
    }
    let refused = three.unnamed().await;
    assert_eq!(refused.status, 422);
    let cap = "205 output tokens";
    assert!(refused.text.contains(cap), "{}", refused.text);
    assert_eq!(three.upstream.calls(), 0);
    assert_eq!(two.reason("r"), None, "a run that spans calls goes on");
    sleep(HOUR).await;
    let again = three.spawn_unnamed();
    sleep(secs(1)).await;
    assert_eq!(three.upstream.calls(), 1);
    again.abort();
}

#[tokio::test(start_paused = true)]
async fn a_restart_keeps_the_hour() {
    let store = InMemoryRunStore::new();
    let set = |stack: AgentStack<Server>| {
        let tokens = TokenCaps::new().max_output_tokens(100);
        stack.owner_caps(of_turns(3).tokens_per_hour(tokens))
    };
    let one = Replica::new(&store, of_tokens(40), set);
    assert_eq!(one.unnamed().await.status, 200);
    heard().await;
    drop(one);
    let again = Replica::new(&store, of_tokens(20), set);
    assert_eq!(again.ask("r").await.status, 200);
    assert_eq!(again.unnamed().await.status, 200);
    let refused = again.unnamed().await;
    assert_eq!(refused.status, 422);
    assert!(refused.text.contains("3 turns"), "{}", refused.text);
    let third = Replica::new(&store, of_tokens(20), |stack| {
        stack.owner_caps(of_output(80))
    });
    let refused = third.unnamed().await;
    assert!(
        refused.text.contains("80 output tokens"),
        "{}",
        refused.text
    );
}

#[tokio::test(start_paused = true)]
async fn the_open_runs_of_a_replica_that_died_fall_out_after_half_a_minute() {
    let store = InMemoryRunStore::new();
    let set = |stack: AgentStack<Server>| stack.owner_caps(of_runs(1).turns_per_hour(3));
    let one = Replica::new(&store, endless(), set);
    let two = Replica::new(&store, endless(), set);
    let call = one.spawn_unnamed();
    sleep(secs(600)).await;
    assert_eq!(two.unnamed().await.status, 422, "it lives");
    // Nothing of it is told any more.
    one.store.cut();
    call.abort();
    drop(one);
    sleep(secs(29)).await;
    assert_eq!(two.unnamed().await.status, 422);
    sleep(secs(2)).await;
    let call = two.spawn_unnamed();
    sleep(secs(1)).await;
    assert_eq!(two.upstream.calls(), 1);
    call.abort();
    heard().await;
    let call = two.spawn_unnamed();
    sleep(secs(1)).await;
    assert_eq!(two.upstream.calls(), 2);
    call.abort();
    heard().await;
    let refused = two.unnamed().await;
    assert!(
        refused.text.contains("3 turns"),
        "its turn stays: {}",
        refused.text
    );
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_stops_gives_up_its_open_runs() {
    let [one, two] = replicas(&endless(), |stack| stack.owner_caps(of_runs(1)));
    let call = spawn(&one, "r");
    sleep(secs(1)).await;
    assert_eq!(two.unnamed().await.status, 422);
    assert_eq!(one.registry.shutdown(), 1);
    call.await.unwrap();
    heard().await;
    let call = two.spawn_unnamed();
    sleep(secs(1)).await;
    assert_eq!(two.upstream.calls(), 1);
    call.abort();
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_cut_off_goes_on_with_what_it_knows_and_tells_it_later() {
    let [one, two] = replicas(&healthy(), |stack| stack.owner_caps(of_turns(10)));
    for replica in [&one, &one, &one, &two] {
        assert_eq!(replica.unnamed().await.status, 200);
    }
    two.store.cut();
    // It knows of three elsewhere, and of one here.
    let mut served = HashSet::new();
    for call in 0..8 {
        if two.unnamed().await.status == 200 {
            served.insert(call);
        }
    }
    assert_eq!(served, (0..6).collect());
    // The other side goes on, too, and knows of one.
    for _ in 0..3 {
        assert_eq!(one.unnamed().await.status, 200);
    }
    two.store.mend();
    heard().await;
    for replica in [&one, &two] {
        assert_eq!(replica.unnamed().await.status, 422, "13 turns");
    }
    // What was learned of the others no longer counts after an hour.
    two.store.cut();
    sleep(HOUR).await;
    let mut served = 0;
    for _ in 0..12 {
        served += usize::from(two.unnamed().await.status == 200);
    }
    assert_eq!(served, 10);
}

#[tokio::test(start_paused = true)]
async fn what_a_request_was_granted_and_did_not_take_is_given_back() {
    let [one, two] = replicas(&healthy(), |stack| {
        let caps = of_turns(3).max_open_runs(2);
        stack.owner_caps(caps).max_turns(1)
    });
    assert_eq!(one.ask("r").await.status, 200);
    // The run is at its cap, which a layer further in finds.
    assert_eq!(one.ask("r").await.status, 422);
    // It has ended elsewhere, which the same answer says.
    assert_eq!(two.ask("r").await.status, 422);
    heard().await;
    let mut served = 0;
    for call in 0..4 {
        let replica = if call % 2 == 0 { &one } else { &two };
        served += usize::from(replica.unnamed().await.status == 200);
    }
    // The second request passed the owner's cap before the run's refused it.
    assert_eq!(served, 1);
}

#[tokio::test(start_paused = true)]
async fn only_a_cap_of_the_owner_asks_and_tells() {
    let [one] = replicas(&of_tokens(40), |stack| stack);
    one.unnamed().await;
    assert_eq!(one.store.questions(), 0);

    let [one] = replicas(&of_tokens(40), |stack| stack.owner_caps(of_runs(5)));
    one.ask("r").await;
    one.ask("r").await;
    assert_eq!(one.store.questions(), 1, "the second opens no run");
    one.unnamed().await;
    assert_eq!(one.store.questions(), 2);

    let [one] = replicas(&of_tokens(40), |stack| stack.owner_caps(of_output(500)));
    one.ask("r").await;
    one.ask("r").await;
    one.unnamed().await;
    assert_eq!(one.store.questions(), 3);

    // One question for all caps.
    let [one] = replicas(&of_tokens(40), |stack| {
        let caps = of_runs(5).turns_per_hour(9);
        stack
            .owner_caps(caps)
            .max_turns(4)
            .token_caps(TokenCaps::new().max_output_tokens(900))
    });
    one.ask("r").await;
    one.ask("r").await;
    assert_eq!(one.store.questions(), 2);

    // The program's own runs are not capped, and its requests ask nothing.
    let [one, two] = replicas(&of_tokens(40), |stack| stack.owner_caps(of_runs(1)));
    let run = one.registry.open(Owner::anonymous(), id("mine"));
    assert_eq!(one.send(run.attach(prompt("a"))).await.status, 200);
    assert_eq!(one.store.questions(), 0);
    assert_eq!(two.unnamed().await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_month_holds_for_all_replicas_at_once_and_outlives_restarts() {
    let store = InMemoryRunStore::new();
    let began = Instant::now();
    let new = |script: &Script, caps| {
        let replica = Replica::new(&store, script.clone(), |stack| stack.owner_caps(caps));
        replica.registry.set_calendar(PausedCalendar { began });
        replica
    };
    let caps = OwnerCaps::new().turns_per_month(30).turns_per_day(20);
    let (slow, healthy) = (slow(5.0), healthy());
    let new_slow = || new(&slow, caps);
    let replicas = [new_slow(), new_slow(), new_slow()];
    let calls = (0..60).map(|call| replicas[call % 3].unnamed());
    let outcomes = join_all(calls).await;
    assert_eq!(count(&outcomes, 200), 20, "those of a day");
    let refused = outcomes.iter().find(|it| it.status == 422).unwrap();
    assert!(
        refused.text.contains("20 turns this day"),
        "{}",
        refused.text
    );
    heard().await;
    drop(replicas);
    let month = OwnerCaps::new().turns_per_month(30);
    let [one, two] = [new(&healthy, month), new(&healthy, month)];
    for call in 0..10 {
        let replica = if call % 2 == 0 { &one } else { &two };
        assert_eq!(replica.unnamed().await.status, 200, "{call}");
    }
    for replica in [&one, &two, &new(&healthy, month)] {
        let refused = replica.unnamed().await;
        assert_eq!(refused.status, 422);
        assert!(
            refused.text.contains("30 turns this month"),
            "{}",
            refused.text
        );
    }
}

#[tokio::test(start_paused = true)]
async fn two_streams_of_one_owner_spend_one_day() {
    let store = InMemoryRunStore::new();
    let tokens = TokenCaps::new().max_output_tokens(205);
    let caps = OwnerCaps::new().tokens_per_day(tokens);
    let began = Instant::now();
    let new = || {
        let replica = Replica::new(&store, ten_a_second(), |stack| stack.owner_caps(caps));
        replica.registry.set_calendar(PausedCalendar { began });
        replica
    };
    let [one, two] = [new(), new()];
    let calls = [one.spawn_unnamed(), two.spawn_unnamed()];
    let mut tokens = 0;
    for call in calls {
        let outcome = call.await.unwrap();
        assert!(
            outcome.text.contains("this day, its 205 output tokens"),
            "{}",
            outcome.text
        );
        tokens += 10 * frames(&outcome);
    }
    assert!((205..=240).contains(&tokens), "{tokens}");
    assert_eq!(new().unnamed().await.status, 422);
}
