//! The promises of a shared store, with two and three replicas on one server.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep},
};
use tower::ServiceExt;
use tower_agent::{
    AgentStack, Owner, RunRegistry, TerminalReason,
    layers::run::RequestRun,
    registry::{
        AbortOutcome,
        store::{
            Heard, NewsSubject, OwnerElsewhere, OwnerQuestion, Reach, Recalled, RunNews,
            RunQuestion, RunStore, StoreFuture, StoreLost, StoredCooldowns, StoredFreezes,
        },
    },
};
use tower_agent_redis::RedisRunStore;

use crate::{
    proxy::Proxy,
    replica::{Replica, Settings, endless, id, reason_of, replicas, slow},
    server::{Server, until},
    support::{DONE, Outcome, Upstream, healthy, healthy_text, prompt, secs, with_header},
};

#[tokio::test]
async fn an_end_at_one_replica_ends_the_run_at_the_other_and_frees_its_upstream() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &endless(), Settings::default()).await;
    let calls = [one.spawn("r"), two.spawn("r")];
    one.called(1).await;
    two.called(1).await;

    assert_eq!(one.abort("r"), AbortOutcome::Ended);
    for outcome in join_all(calls).await {
        assert_eq!(reason_of(&outcome.unwrap()), Some(TerminalReason::Aborted));
    }
    assert!(one.upstream.is_dropped() && two.upstream.is_dropped());
}

#[tokio::test]
async fn the_stack_of_a_server_asks_and_hears_too() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let stores = [server.store().await, server.store().await];
    let [one, two] = stores.map(|store| RunRegistry::new().share(store));
    let listener = tokio::spawn(two.listen());
    let upstream = Upstream::script(endless());
    let service = AgentStack::server(&two)
        .max_turns(9)
        .service(upstream.clone());
    let request = with_header(prompt("a"), "x-run-id", "r");
    let call = tokio::spawn(Outcome::of(service.oneshot(request)));
    until("the upstream is called", || upstream.calls() == 1).await;
    assert_eq!(one.abort(Owner::anonymous(), &id("r")), AbortOutcome::Told);
    assert_eq!(
        reason_of(&call.await.unwrap()),
        Some(TerminalReason::Aborted)
    );
    listener.abort();
}

#[tokio::test]
async fn an_ended_id_is_refused_where_nobody_knew_it_with_the_same_reason() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &healthy(), Settings::turns(1)).await;
    assert_eq!(one.ask("capped").await.whole(), healthy_text());
    let here = one.ask("capped").await;
    one.told().await;
    let there = two.ask("capped").await;
    for outcome in [&here, &there] {
        assert_eq!(outcome.status, 422);
        let reason = outcome.header("x-terminal-reason");
        assert_eq!(reason, Some("turn_cap_reached"));
        assert_eq!(outcome.header("x-run-id"), Some("capped"));
        assert!(outcome.text.contains("1 turn"), "{}", outcome.text);
    }
    assert_eq!(two.upstream.calls(), 0);
    assert!(two.registry.list().is_empty(), "no trace of a run");
}

#[tokio::test]
async fn an_abort_at_a_replica_that_does_not_hold_the_run_ends_it_where_it_is() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &endless(), Settings::default()).await;
    let call = one.spawn("r");
    one.called(1).await;
    assert_eq!(two.abort("r"), AbortOutcome::Told);
    assert_eq!(
        reason_of(&call.await.unwrap()),
        Some(TerminalReason::Aborted)
    );
    // Nobody knows this one, and nothing is stored for it.
    assert_eq!(two.abort("unknown"), AbortOutcome::Told);
    assert_eq!(one.abort("unknown"), AbortOutcome::Told);
    one.told().await;
    two.told().await;
    let call = two.spawn("unknown");
    two.called(1).await;
    assert_eq!(two.reason("unknown"), None);
    call.abort();
}

/// The caller has its id from the answer, and a balancer sends the abort elsewhere.
#[tokio::test]
async fn an_abort_elsewhere_ends_a_run_whose_id_was_made_here() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &endless(), Settings::default()).await;
    let call = one.spawn_request(prompt("a"));
    one.called(1).await;
    let made = one.registry.list().remove(0).run.to_string();
    assert_eq!(two.abort(&made), AbortOutcome::Told);
    let outcome = tokio::time::timeout(secs(5), call).await;
    let outcome = outcome.expect("the run has ended").unwrap();
    assert_eq!(reason_of(&outcome), Some(TerminalReason::Aborted));
}

#[tokio::test]
async fn whoever_aborts_learns_how_many_replicas_have_carried_it_out() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two, three] = replicas(&server, &endless(), Settings::default()).await;
    let run = id("r");
    let mut took = Vec::new();
    for _ in 0..20 {
        let call = one.spawn("r");
        one.called(took.len() + 1).await;
        assert_eq!(two.abort("r"), AbortOutcome::Told);
        let start = Instant::now();
        let reach = two.registry.reach(Owner::anonymous(), &run, secs(5));
        let reach = reach.await.unwrap();
        took.push(start.elapsed());
        assert_eq!((reach.replicas, reach.silent), (3, 0));
        assert_eq!(one.reason("r"), Some(TerminalReason::Aborted));
        call.await.unwrap();
        drop(one.registry.reopen(Owner::anonymous(), &run).unwrap());
        one.told().await;
    }
    took.sort();
    println!(
        "three replicas carried out an abort: p50 {:?}, longest {:?}",
        took[10], took[19]
    );

    // A replica that is gone is silent for the three seconds in which it may be slow.
    drop(three);
    let wait = Duration::from_millis(250);
    let reach = two.registry.reach_session(Owner::anonymous(), "s", wait);
    let reach = reach.await.unwrap();
    assert_eq!((reach.replicas, reach.silent), (2, 1));
    sleep(Duration::from_millis(3500)).await;
    let reach = two.registry.reach(Owner::anonymous(), &run, wait);
    let reach = reach.await.unwrap();
    assert_eq!((reach.replicas, reach.silent), (2, 0));
    server.signal("STOP");
    let reach = two.registry.reach(Owner::anonymous(), &run, wait);
    assert_eq!(reach.await, None);
    server.signal("CONT");
}

#[tokio::test]
async fn an_operator_aborts_the_runs_of_all_owners_everywhere() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two, three] = replicas(&server, &endless(), Settings::default()).await;
    let of = |owner: &str, run: &str| {
        let request = with_header(prompt("a"), "x-run-id", run);
        let request = with_header(request, "x-session-id", "s");
        with_header(request, "authorization", owner)
    };
    let calls = [
        one.spawn_request(of("Bearer one", "r")),
        two.spawn_request(of("Bearer two", "r")),
        two.spawn_request(of("Bearer two", "other")),
    ];
    one.called(1).await;
    two.called(2).await;
    // A run of a replica that has gone, and one whose id a replica has made.
    let gone = Replica::new(&server.url(), healthy(), Settings::default()).await;
    assert_eq!(gone.send(of("Bearer three", "r")).await.status, 200);
    drop(gone);
    let made = one.spawn_request(prompt("a"));
    one.called(2).await;
    let of_one = one.registry.list();
    let made_id = of_one
        .iter()
        .find(|run| run.run != id("r"))
        .unwrap()
        .run
        .clone();

    assert_eq!(three.registry.abort_for_all(&id("r")), AbortOutcome::Told);
    assert_eq!(three.registry.abort_for_all(&made_id), AbortOutcome::Told);
    let [first, second, other] = calls;
    for call in [first, second, made] {
        let outcome = tokio::time::timeout(secs(5), call).await;
        let outcome = outcome.expect("the run has ended").unwrap();
        assert_eq!(reason_of(&outcome), Some(TerminalReason::Aborted));
    }
    three.told().await;
    let refused = three.send(of("Bearer three", "r")).await;
    assert_eq!(refused.header("x-terminal-reason"), Some("aborted"));
    let live = |replica: &Replica| replica.registry.open_runs();
    assert_eq!((live(&one), live(&two)), (0, 1), "the other id lives");

    assert_eq!(three.registry.abort_session_for_all("s"), []);
    let outcome = tokio::time::timeout(secs(5), other).await;
    let outcome = outcome.expect("the run has ended").unwrap();
    assert_eq!(reason_of(&outcome), Some(TerminalReason::Aborted));
}

#[tokio::test]
async fn a_cap_on_turns_holds_for_the_sum_and_what_it_admitted_is_answered_in_full() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    for rest in [0, 1, 30] {
        let run = format!("r-{rest}");
        let replicas: [Replica; 3] = replicas(&server, &slow(0.3), Settings::turns(30)).await;
        let calls = (0..30 + rest).map(|call| replicas[call % 3].spawn(&run));
        let outcomes: Vec<_> = join_all(calls)
            .await
            .into_iter()
            .map(Result::unwrap)
            .collect();

        let answered = outcomes.iter().filter(|it| it.status == 200);
        let answered: Vec<_> = answered.map(Outcome::whole).collect();
        assert_eq!(answered.len(), 30, "{rest}");
        assert!(answered.iter().all(|text| text.ends_with(DONE)));
        let refused = outcomes.iter().filter(|it| it.status == 422).count();
        assert_eq!(refused, rest);
        let calls: usize = replicas.iter().map(|it| it.upstream.calls()).sum();
        assert_eq!(calls, 30);
        if rest > 0 {
            for replica in &replicas {
                assert_eq!(replica.ended(&run).await, TerminalReason::TurnCap, "{rest}");
            }
        }
    }
}

/// A store whose answers come late: news overtake them, as they come on another connection.
#[derive(Debug)]
struct LateAnswers {
    store: Arc<RedisRunStore>,
    gate: Arc<Semaphore>,
}

impl RunStore for LateAnswers {
    fn ask(self: Arc<Self>, question: RunQuestion) -> StoreFuture<Result<Recalled, StoreLost>> {
        Box::pin(async move {
            let answer = Arc::clone(&self.store).ask(question).await;
            self.gate.acquire().await.unwrap().forget();
            answer
        })
    }

    fn ask_owner(
        self: Arc<Self>,
        question: OwnerQuestion,
    ) -> StoreFuture<Result<OwnerElsewhere, StoreLost>> {
        Arc::clone(&self.store).ask_owner(question)
    }

    fn tell(&self, news: RunNews) {
        self.store.tell(news);
    }

    fn next(self: Arc<Self>) -> StoreFuture<Heard> {
        Arc::clone(&self.store).next()
    }

    fn cooldowns(self: Arc<Self>) -> StoreFuture<Result<StoredCooldowns, StoreLost>> {
        Arc::clone(&self.store).cooldowns()
    }

    fn frozen(self: Arc<Self>) -> StoreFuture<Result<StoredFreezes, StoreLost>> {
        Arc::clone(&self.store).frozen()
    }

    fn reach(
        self: Arc<Self>,
        about: NewsSubject,
        wait: Duration,
    ) -> StoreFuture<Result<Reach, StoreLost>> {
        Arc::clone(&self.store).reach(about, wait)
    }
}

#[tokio::test]
async fn an_end_at_the_cap_overtakes_no_turn_that_was_granted() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one] = replicas(&server, &healthy(), Settings::turns(2)).await;
    let gate = Arc::new(Semaphore::new(1));
    let late = Arc::new(LateAnswers {
        store: server.store().await,
        gate: Arc::clone(&gate),
    });
    let registry = RunRegistry::new().share(late.clone());
    let listener = tokio::spawn(registry.listen());
    let stack = AgentStack::server(&registry).max_turns(2);
    let service = stack
        .run_store(|layer| layer.wait(secs(5)))
        .service(Upstream::script(healthy()));
    let ask = || {
        let request = with_header(prompt("a"), "x-run-id", "r");
        Outcome::of(service.clone().oneshot(request))
    };
    assert_eq!(ask().await.whole(), healthy_text());
    // The store grants the last turn, and the answer is on the way.
    let last = tokio::spawn(ask());
    until("the store has answered", || {
        late.store.stats().questions == 2
    })
    .await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(one.ask("r").await.status, 422);
    one.told().await;
    sleep(Duration::from_millis(500)).await;
    gate.add_permits(1);
    assert_eq!(last.await.unwrap().whole(), healthy_text());
    // Nothing is under way any more.
    let run = registry.get(Owner::anonymous(), &id("r")).unwrap();
    assert_eq!(run.terminal_reason(), Some(TerminalReason::TurnCap));
    listener.abort();
}

#[tokio::test]
async fn turns_one_after_the_other_use_up_one_cap() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &healthy(), Settings::turns(5)).await;
    let mut answered = 0;
    for turn in 0..10 {
        let replica = if turn % 2 == 0 { &one } else { &two };
        answered += usize::from(replica.ask("r").await.status == 200);
    }
    assert_eq!(answered, 5);
}

#[tokio::test]
async fn a_ceiling_counts_from_the_first_opening() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings {
        ceiling: secs(2),
        ..Settings::default()
    };
    let [one, two] = replicas(&server, &endless(), settings).await;
    let first = one.spawn("r");
    sleep(secs(1)).await;
    let second = two.ask("r").await;
    assert_eq!(reason_of(&second), Some(TerminalReason::HardCeiling));
    assert!(second.at < secs(2) - secs(1) / 2, "{:?}", second.at);
    let first = reason_of(&first.await.unwrap());
    assert_eq!(first, Some(TerminalReason::HardCeiling));
}

#[tokio::test]
async fn an_abort_of_a_session_ends_its_runs_everywhere_and_those_that_are_known_nowhere() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &endless(), Settings::default()).await;
    let of_session = |run: &str, session: &str| {
        let request = with_header(prompt("a"), "x-run-id", run);
        with_header(request, "x-session-id", session)
    };
    let calls = [
        one.spawn_request(of_session("a", "s")),
        two.spawn_request(of_session("b", "s")),
        two.spawn_request(of_session("c", "t")),
    ];
    one.called(1).await;
    two.called(2).await;
    // A run of the session without an id of its own.
    let unnamed = with_header(prompt("a"), "x-session-id", "s");
    let unnamed = two.spawn_request(unnamed);
    // A run of a replica that has gone.
    let gone = Replica::new(&server.url(), healthy(), Settings::default()).await;
    assert_eq!(gone.send(of_session("e", "s")).await.status, 200);
    drop(gone);
    two.called(3).await;

    let aborted = one.registry.abort_session(Owner::anonymous(), "s");
    assert_eq!(aborted, [id("a")]);
    assert_eq!(two.ended("b").await, TerminalReason::Aborted);
    let unnamed = reason_of(&unnamed.await.unwrap());
    assert_eq!(unnamed, Some(TerminalReason::Aborted));
    assert_eq!(two.reason("c"), None);
    calls[2].abort();
    one.told().await;
    // Refused at each, whoever held it.
    for ended in ["b", "e"] {
        let refused = one.ask(ended).await;
        assert_eq!(refused.header("x-terminal-reason"), Some("aborted"));
    }
    // A run that is opened in the session after the abort lives.
    let later = two.spawn_request(of_session("d", "s"));
    two.called(4).await;
    assert_eq!(two.reason("d"), None);
    later.abort();
}

#[tokio::test]
async fn a_program_that_reopens_an_id_opens_it_for_all() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &healthy(), Settings::turns(1)).await;
    one.ask("r").await;
    one.ask("r").await;
    one.told().await;
    assert_eq!(two.ask("r").await.status, 422);

    let run = one.registry.reopen(Owner::anonymous(), &id("r")).unwrap();
    assert_eq!(run.terminal_reason(), None);
    // The very next question comes after the news.
    assert_eq!(one.ask("r").await.whole(), healthy_text());
    one.told().await;
    assert_eq!(two.ask("r").await.status, 422, "one turn in all");
    until("the run ends", || run.terminal_reason().is_some()).await;
    assert_eq!(run.terminal_reason(), Some(TerminalReason::TurnCap));
}

#[tokio::test]
async fn a_part_that_is_idle_leaves_its_turns_to_the_rest() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings {
        idle: secs(1),
        ..Settings::turns(4)
    };
    let [one, two] = replicas(&server, &healthy(), settings).await;
    one.ask("r").await;
    one.ask("r").await;
    assert_eq!(two.ask("r").await.status, 200);
    // The part at `one` completes as idle; the one at `two` works on.
    until("the part is idle", || {
        two.run("r").unwrap().heartbeat();
        let _tidied = one.registry.list();
        one.reason("r").is_some()
    })
    .await;
    assert_eq!(one.reason("r"), Some(TerminalReason::Completed));
    assert_eq!(two.reason("r"), None, "an idle part ends nothing elsewhere");
    let fourth = one.ask("r").await.status;
    assert_eq!(fourth, 200, "the fourth turn, in a new part");
    assert_eq!(two.ask("r").await.status, 422);
}

#[tokio::test]
async fn a_run_that_completed_everywhere_is_opened_anew() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let settings = Settings {
        idle: secs(1) / 5,
        ..Settings::turns(1)
    };
    let [one, two] = replicas(&server, &healthy(), settings).await;
    one.ask("r").await;
    until("the run is idle", || {
        let _tidied = one.registry.list();
        one.reason("r").is_some()
    })
    .await;
    assert_eq!(one.reason("r"), Some(TerminalReason::Completed));
    one.told().await;
    assert_eq!(two.ask("r").await.status, 200, "another run of this id");
}

#[tokio::test]
async fn both_ends_of_a_race_stay_where_they_were_stored() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &endless(), Settings::default()).await;
    let calls = [one.spawn("r"), two.spawn("r")];
    one.called(1).await;
    two.called(1).await;
    one.run("r").unwrap().end(TerminalReason::Stuck);
    two.run("r").unwrap().end(TerminalReason::Superseded);
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(one.reason("r"), Some(TerminalReason::Stuck));
    assert_eq!(two.reason("r"), Some(TerminalReason::Superseded));
    // The store's end, at the one that did not win.
    until("the other's reason is heard", || {
        let also = |it: &Replica| it.run("r").unwrap().snapshot().also;
        also(&two) == [TerminalReason::Stuck] || also(&one) == [TerminalReason::Superseded]
    })
    .await;
}

#[tokio::test]
async fn without_the_store_each_replica_has_its_cap_and_tells_its_ends_later() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(server.port).await;
    let one = Replica::new(&server.url(), healthy(), Settings::turns(3)).await;
    let two = Replica::new(&proxy.url(), healthy(), Settings::turns(3)).await;
    assert_eq!(one.ask("r").await.status, 200);
    assert_eq!(two.ask("r").await.status, 200);
    proxy.cut();
    // The one that is cut off knows of one turn elsewhere.
    let statuses = [two.ask("r").await.status, two.ask("r").await.status];
    assert_eq!(statuses, [200, 422]);
    let over = one.ask("r").await.status;
    assert_eq!(over, 200, "overshoot of one cap at most");
    assert_eq!(one.reason("r"), None);
    assert_eq!(one.abort("s"), AbortOutcome::Told);

    proxy.mend();
    assert_eq!(one.ended("r").await, TerminalReason::TurnCap);
}

#[tokio::test]
async fn a_replica_that_was_cut_off_ends_what_was_ended_meanwhile() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let proxy = Proxy::start(server.port).await;
    let one = Replica::new(&server.url(), endless(), Settings::default()).await;
    let two = Replica::new(&proxy.url(), endless(), Settings::default()).await;
    let call = two.spawn("r");
    two.called(1).await;
    proxy.cut();
    until("the loss is seen", || !two.store.stats().up).await;
    assert_eq!(one.abort("r"), AbortOutcome::Told);
    one.told().await;
    assert_eq!(two.reason("r"), None);
    proxy.mend();
    assert_eq!(
        reason_of(&call.await.unwrap()),
        Some(TerminalReason::Aborted)
    );
    until("the store is back", || two.store.stats().up).await;
}

#[tokio::test]
async fn the_counts_of_a_replica_that_died_stay() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [two, three] = replicas(&server, &healthy(), Settings::turns(3)).await;
    let proxy = Proxy::start(server.port).await;
    let one = Replica::new(&proxy.url(), healthy(), Settings::turns(3)).await;
    assert_eq!(two.ask("r").await.status, 200);
    one.ask("r").await;
    // Nothing of what it says at its end arrives.
    proxy.cut();
    drop(one);
    assert_eq!(three.ask("r").await.status, 200);
    assert_eq!(two.ask("r").await.status, 422);
}

#[tokio::test]
async fn a_replica_that_stops_ends_no_run_elsewhere() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &slow(1.0), Settings::turns(9)).await;
    let here = one.spawn("r");
    one.called(1).await;
    let there = two.spawn("r");
    two.called(1).await;
    one.registry.shutdown();
    assert_eq!(
        reason_of(&here.await.unwrap()),
        Some(TerminalReason::Shutdown)
    );
    one.told().await;
    assert_eq!(there.await.unwrap().status, 200);
    assert_eq!(two.reason("r"), None);
    assert_eq!(two.run("r").map(|run| run.turns()), Some(2));
}

/// Its turn would be lost to the others: the refused client repeats the request there.
#[tokio::test]
async fn a_replica_that_stops_takes_no_turn() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &healthy(), Settings::turns(2)).await;
    two.registry.shutdown();
    for _ in 0..5 {
        let refused = two.ask("r").await;
        let reason = refused.header("x-terminal-reason");
        assert_eq!((refused.status, reason), (503, Some("shutdown")));
    }
    for _ in 0..2 {
        assert_eq!(one.ask("r").await.whole(), healthy_text());
    }
    assert_eq!(one.ask("r").await.status, 422);
}

#[tokio::test]
async fn the_stricter_of_two_configurations_ends_the_run_first() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let strict = Replica::new(&server.url(), healthy(), Settings::turns(2)).await;
    let lax = Replica::new(&server.url(), healthy(), Settings::turns(9)).await;
    for _ in 0..3 {
        assert_eq!(lax.ask("r").await.status, 200);
    }
    assert_eq!(strict.ask("r").await.status, 422);
    strict.told().await;
    assert_eq!(lax.ask("r").await.status, 422);
}

#[tokio::test]
async fn the_child_of_a_run_that_ended_elsewhere_is_not_served() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &healthy(), Settings::default()).await;
    assert_eq!(one.ask("parent").await.status, 200);
    one.abort("parent");
    one.told().await;
    let mut request = prompt("a");
    let child = RequestRun::new(id("child")).child_of(id("parent"));
    request.extensions_mut().insert(child);
    let outcome = two.send(request).await;
    assert_eq!(outcome.header("x-terminal-reason"), Some("aborted"));
    assert_eq!(two.upstream.calls(), 0);
    // The store knows the parent of the child by now.
    assert_eq!(
        one.ask("child").await.header("x-terminal-reason"),
        Some("aborted")
    );
}

#[tokio::test]
async fn a_request_asks_once_and_one_without_an_id_never() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one] = replicas(&server, &healthy(), Settings::turns(9)).await;
    one.send(prompt("a")).await;
    assert_eq!(one.store.stats().questions, 0);
    one.ask("r").await;
    one.ask("r").await;
    let stats = one.store.stats();
    assert_eq!((stats.questions, stats.lost), (2, 0), "one a turn");
}

#[tokio::test]
async fn a_caller_that_leaves_while_the_store_is_asked_keeps_no_turn() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &healthy(), Settings::turns(2)).await;
    for _ in 0..10 {
        let request = with_header(prompt("a"), "x-run-id", "r");
        let mut call = std::pin::pin!(one.service.clone().oneshot(request));
        // Asked, and gone before the answer.
        assert!(futures_util::poll!(&mut call).is_pending());
    }
    let statuses = [one.ask("r").await, two.ask("r").await].map(|it| it.status);
    assert_eq!(statuses, [200, 200]);
}

/// The figures that the promises give: prints them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abort_arrives_within_a_quarter_of_a_second() {
    let Some(server) = Server::start(&[]) else {
        return;
    };
    let [one, two] = replicas(&server, &endless(), Settings::default()).await;
    let mut took = Vec::new();
    for number in 0..200 {
        let run = format!("r-{number}");
        let calls = [one.spawn(&run), two.spawn(&run)];
        one.called(number + 1).await;
        two.called(number + 1).await;
        let there = two.run(&run).unwrap();
        let start = tokio::time::Instant::now();
        assert_eq!(one.abort(&run), AbortOutcome::Ended);
        assert_eq!(there.ended().await, TerminalReason::Aborted);
        took.push(start.elapsed());
        for call in calls {
            call.await.unwrap();
        }
    }
    took.sort();
    eprintln!(
        "abort: p50 {:?}, p99 {:?}, most {:?}",
        took[100], took[198], took[199]
    );
    assert!(took[198] < secs(1) / 4, "{took:?}");
}
