//! Turns that were held, and what the store answers when they go on.
//!
//! covers: H12, H4

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;
use tower::ServiceExt;
use tower_agent::{
    AgentStack, Owner, RunExtension, RunRegistry, TerminalReason, TurnCapLayer,
    registry::store::{
        Heard, InMemoryReplica, InMemoryRunStore, NewsSubject, OwnerElsewhere, OwnerQuestion,
        Reach, Recalled, RunNews, RunQuestion, RunStore, StoreFuture, StoreLost, StoredCooldowns,
        StoredFreezes,
    },
    run::PauseAtCap,
};

use super::{Replica, heard, id, spawn};
use crate::support::{Outcome, Upstream, healthy, prompt, secs, with_header};

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

/// A store whose answers come 20 ms late; news come at once.
#[derive(Debug)]
struct LateAnswers(Arc<InMemoryReplica>);

impl RunStore for LateAnswers {
    fn ask(self: Arc<Self>, question: RunQuestion) -> StoreFuture<Result<Recalled, StoreLost>> {
        Box::pin(async move {
            let answer = Arc::clone(&self.0).ask(question).await;
            sleep(Duration::from_millis(20)).await;
            answer
        })
    }

    fn ask_owner(
        self: Arc<Self>,
        question: OwnerQuestion,
    ) -> StoreFuture<Result<OwnerElsewhere, StoreLost>> {
        Arc::clone(&self.0).ask_owner(question)
    }

    fn tell(&self, news: RunNews) {
        self.0.tell(news);
    }

    fn reach(
        self: Arc<Self>,
        about: NewsSubject,
        wait: Duration,
    ) -> StoreFuture<Result<Reach, StoreLost>> {
        Arc::clone(&self.0).reach(about, wait)
    }

    fn next(self: Arc<Self>) -> StoreFuture<Heard> {
        Arc::clone(&self.0).next()
    }

    fn cooldowns(self: Arc<Self>) -> StoreFuture<Result<StoredCooldowns, StoreLost>> {
        Arc::clone(&self.0).cooldowns()
    }

    fn frozen(self: Arc<Self>) -> StoreFuture<Result<StoredFreezes, StoreLost>> {
        Arc::clone(&self.0).frozen()
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_turn_that_leaves_while_it_asks_lets_the_run_close() {
    let store = InMemoryRunStore::new();
    let registry = RunRegistry::new().share(Arc::new(LateAnswers(store.replica())));
    let listener = tokio::spawn(registry.listen());
    let service = AgentStack::server(&registry)
        .max_turns(TurnCapLayer::new(1).pause(PauseAtCap::new()))
        .service(Upstream::script(healthy()));
    let ask = || {
        Outcome::of(
            service
                .clone()
                .oneshot(with_header(prompt("a"), "x-run-id", "r")),
        )
    };
    let other = Replica::new(&store, healthy(), |stack| stack.max_turns(1));
    assert_eq!(ask().await.status, 200);
    let held = tokio::spawn(ask());
    sleep(secs(5)).await;
    let run = registry.get(Owner::anonymous(), &id("r")).unwrap();
    run.extend(RunExtension::new().turns(1)).unwrap();
    sleep(Duration::from_millis(10)).await;
    // The held turn has been granted the second one, and its answer is on the way.
    assert_eq!(other.ask("r").await.status, 422);
    heard().await;
    assert_eq!(run.terminal_reason(), None, "it waits for the answer");
    held.abort();
    heard().await;

    assert_eq!(run.terminal_reason(), Some(TerminalReason::TurnCap));
    listener.abort();
}
