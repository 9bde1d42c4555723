//! Two and three registries that share a store: ends, caps on turns, ages and sessions hold for all.

mod candidates;
mod extension;
mod freezes;
mod held;
mod owners;
mod tokens;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::{
    task::{AbortHandle, yield_now},
    time::{Instant, sleep},
};
use tower::{ServiceExt, util::BoxCloneService};
use tower_agent::{
    AgentStack, BoxError, Owner, Run, RunId, RunRegistry, TerminalReason,
    registry::{
        AbortOutcome,
        store::{InMemoryReplica, InMemoryRunStore, Reach},
    },
    stack::Server,
};

use crate::support::{
    DONE, FINISH, Outcome, PRELUDE, Script, Upstream, chat, healthy, healthy_text, prompt, secs,
    with_header,
};

type Service =
    BoxCloneService<Request<Full<Bytes>>, Response<UnsyncBoxBody<Bytes, BoxError>>, BoxError>;

/// One process of several.
struct Replica {
    registry: RunRegistry,
    store: Arc<InMemoryReplica>,
    service: Service,
    upstream: Upstream,
    listener: AbortHandle,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

fn id(text: &str) -> RunId {
    text.parse().unwrap()
}

impl Replica {
    fn new(
        store: &InMemoryRunStore,
        script: Script,
        set: impl FnOnce(AgentStack<Server>) -> AgentStack<Server>,
    ) -> Self {
        let upstream = Upstream::script(script);
        let store = store.replica();
        let registry = RunRegistry::new().share(store.clone());
        // As in a server, which listens before its stacks are built.
        let listener = tokio::spawn(registry.listen()).abort_handle();
        let service = set(AgentStack::server(&registry)).service(upstream.clone());
        let service = service.map_response(|answer| answer.map(BodyExt::boxed_unsync));
        Self {
            registry,
            store,
            service: BoxCloneService::new(service.map_err(Into::into)),
            upstream,
            listener,
        }
    }

    async fn ask(&self, run: &str) -> Outcome {
        self.send(with_header(prompt("a"), "x-run-id", run)).await
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Outcome {
        Outcome::of(self.service.clone().oneshot(request)).await
    }

    fn run(&self, run: &str) -> Option<Run> {
        self.registry.get(Owner::anonymous(), &id(run))
    }

    fn abort(&self, run: &str) -> AbortOutcome {
        self.registry.abort(Owner::anonymous(), &id(run))
    }

    fn reason(&self, run: &str) -> Option<TerminalReason> {
        self.run(run)?.terminal_reason()
    }
}

fn replicas<const N: usize>(
    script: &Script,
    set: fn(AgentStack<Server>) -> AgentStack<Server>,
) -> [Replica; N] {
    let store = InMemoryRunStore::new();
    std::array::from_fn(|_| Replica::new(&store, script.clone(), set))
}

/// Lets the listeners hear what was told.
async fn heard() {
    for _ in 0..20 {
        yield_now().await;
    }
}

fn endless() -> Script {
    let said = Script::sse().data(PRELUDE);
    said.repeat(10_000, 1.0, chat("a"))
}

fn slow(seconds: f64) -> Script {
    let said = Script::sse().data(PRELUDE).data(chat("a"));
    said.wait(seconds).data(FINISH).data(DONE)
}

fn spawn(replica: &Replica, run: &'static str) -> tokio::task::JoinHandle<Outcome> {
    let call = replica
        .service
        .clone()
        .oneshot(with_header(prompt("a"), "x-run-id", run));
    tokio::spawn(Outcome::of(call))
}

#[tokio::test(start_paused = true)]
async fn an_end_at_one_replica_ends_the_run_at_the_other_and_frees_its_upstream() {
    let [one, two] = replicas(&endless(), |stack| stack);
    let calls = [spawn(&one, "r"), spawn(&two, "r")];
    sleep(secs(3)).await;

    assert_eq!(one.abort("r"), AbortOutcome::Ended);
    let start = Instant::now();
    for outcome in join_all(calls).await {
        assert_eq!(outcome.unwrap().reason, Some(TerminalReason::Aborted));
    }
    assert!(start.elapsed() < Duration::from_millis(250));
    assert!(one.upstream.is_dropped() && two.upstream.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn an_ended_id_is_refused_where_nobody_knew_it_with_the_same_reason() {
    let [one, two] = replicas(&healthy(), |stack| stack.max_turns(1));
    assert_eq!(one.ask("capped").await.whole(), healthy_text());
    let here = one.ask("capped").await;
    let there = two.ask("capped").await;
    for outcome in [&here, &there] {
        assert_eq!(outcome.status, 422);
        assert_eq!(
            outcome.header("x-terminal-reason"),
            Some("turn_cap_reached")
        );
        assert_eq!(outcome.header("x-run-id"), Some("capped"));
        assert!(outcome.text.contains("1 turn"), "{}", outcome.text);
    }
    assert_eq!(two.upstream.calls(), 0);
    assert!(two.registry.list().is_empty(), "no trace of a run");
}

#[tokio::test(start_paused = true)]
async fn an_abort_at_a_replica_that_does_not_hold_the_run_ends_it_where_it_is() {
    let [one, two] = replicas(&endless(), |stack| stack);
    let call = spawn(&one, "r");
    sleep(secs(1)).await;
    assert_eq!(two.abort("r"), AbortOutcome::Told);
    assert_eq!(call.await.unwrap().reason, Some(TerminalReason::Aborted));
    // The replica that told it does not know how long the run had lasted; the store does.
    sleep(secs(60)).await;
    let refused = two.ask("r").await;
    assert!(refused.text.contains("after 1s"), "{}", refused.text);
    // Nobody knows this one, and nothing is stored for it.
    assert_eq!(two.abort("unknown"), AbortOutcome::Told);
    assert_eq!(one.abort("unknown"), AbortOutcome::Told);
    let call = spawn(&two, "unknown");
    sleep(secs(1)).await;
    assert_eq!(two.upstream.calls(), 1);
    assert_eq!(two.reason("unknown"), None);
    call.abort();
}

/// The caller has its id from the answer, and a balancer sends the abort elsewhere.
#[tokio::test(start_paused = true)]
async fn an_abort_elsewhere_ends_a_run_whose_id_was_made_here() {
    let [one, two] = replicas(&endless(), |stack| stack);
    let call = one.service.clone().oneshot(prompt("a"));
    let call = tokio::spawn(Outcome::of(call));
    sleep(secs(1)).await;
    let made = one.registry.list().remove(0).run.to_string();
    assert_eq!(two.abort(&made), AbortOutcome::Told);
    assert_eq!(call.await.unwrap().reason, Some(TerminalReason::Aborted));
}

#[tokio::test(start_paused = true)]
async fn whoever_aborts_learns_how_many_replicas_have_carried_it_out() {
    let wait = Duration::from_millis(250);
    let reach = |replica: &Replica| replica.registry.reach(Owner::anonymous(), &id("r"), wait);
    let counts = |reach: Option<Reach>| reach.map(|reach| (reach.replicas, reach.silent));
    let [one, two, three] = replicas(&endless(), |stack| stack);
    let call = spawn(&one, "r");
    sleep(secs(1)).await;
    let start = Instant::now();
    assert_eq!(two.abort("r"), AbortOutcome::Told);
    assert_eq!(counts(reach(&two).await), Some((3, 0)));
    assert_eq!(one.reason("r"), Some(TerminalReason::Aborted));
    assert_eq!(start.elapsed(), Duration::ZERO, "nobody was silent");
    call.await.unwrap();

    three.store.cut();
    let session = two.registry.reach_session(Owner::anonymous(), "s", wait);
    assert_eq!(counts(session.await), Some((2, 1)));
    assert_eq!(start.elapsed(), wait);
    assert_eq!(counts(reach(&three).await), None, "the store is lost");
    drop(three);
    // Its listener holds the store until it is dropped, too.
    heard().await;
    assert_eq!(counts(reach(&two).await), Some((2, 0)));
    let alone = RunRegistry::new();
    let alone = alone.reach(Owner::anonymous(), &id("r"), wait).await;
    assert_eq!(counts(alone), None, "nothing is shared");
}

#[tokio::test(start_paused = true)]
async fn an_operator_aborts_the_runs_of_all_owners_everywhere() {
    let [one, two, three] = replicas(&endless(), |stack| stack);
    let call = |replica: &Replica, owner: &str, run: &str| {
        let request = with_header(prompt("a"), "x-run-id", run);
        let request = with_header(request, "x-session-id", "s");
        let request = with_header(request, "authorization", owner);
        tokio::spawn(Outcome::of(replica.service.clone().oneshot(request)))
    };
    let calls = [call(&one, "Bearer one", "r"), call(&two, "Bearer two", "r")];
    let other = call(&two, "Bearer two", "other");
    sleep(secs(1)).await;

    assert_eq!(three.registry.abort_for_all(&id("r")), AbortOutcome::Told);
    for call in calls {
        assert_eq!(call.await.unwrap().reason, Some(TerminalReason::Aborted));
    }
    assert_eq!(
        one.registry.abort_for_all(&id("r")),
        AbortOutcome::AlreadyOver
    );
    assert_eq!(two.registry.open_runs(), 1);
    let refused = call(&three, "Bearer two", "r").await.unwrap();
    assert_eq!(refused.header("x-terminal-reason"), Some("aborted"));

    assert_eq!(three.registry.abort_session_for_all("s"), []);
    assert_eq!(other.await.unwrap().reason, Some(TerminalReason::Aborted));
    let alone = RunRegistry::new();
    assert_eq!(alone.abort_for_all(&id("r")), AbortOutcome::Unknown);
}

#[tokio::test(start_paused = true)]
async fn a_cap_on_turns_holds_for_the_sum_and_what_it_admitted_is_answered_in_full() {
    for rest in [0, 1, 30] {
        let replicas: [Replica; 3] = replicas(&slow(5.0), |stack| stack.max_turns(30));
        let calls = (0..30 + rest).map(|call| replicas[call % 3].ask("r"));
        let outcomes = join_all(calls).await;
        heard().await;

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
                assert_eq!(replica.reason("r"), Some(TerminalReason::TurnCap), "{rest}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn turns_one_after_the_other_use_up_one_cap() {
    let [one, two] = replicas(&healthy(), |stack| stack.max_turns(5));
    let mut answered = 0;
    for turn in 0..10 {
        let replica = if turn % 2 == 0 { &one } else { &two };
        answered += usize::from(replica.ask("r").await.status == 200);
    }
    assert_eq!(answered, 5);
}

#[tokio::test(start_paused = true)]
async fn a_ceiling_counts_from_the_first_opening() {
    let [one, two] = replicas(&endless(), |stack| stack.ceiling(secs(60)));
    let first = spawn(&one, "r");
    sleep(secs(40)).await;
    let start = Instant::now();
    let second = two.ask("r").await;
    assert_eq!(second.reason, Some(TerminalReason::HardCeiling));
    assert_eq!(start.elapsed(), secs(20));
    assert_eq!(
        first.await.unwrap().reason,
        Some(TerminalReason::HardCeiling)
    );
}

#[tokio::test(start_paused = true)]
async fn an_abort_of_a_session_ends_its_runs_everywhere_and_those_that_are_known_nowhere() {
    let [one, two] = replicas(&endless(), |stack| stack);
    let of_session = |run: &'static str, session: &'static str| {
        let request = with_header(prompt("a"), "x-run-id", run);
        with_header(request, "x-session-id", session)
    };
    let calls = [
        tokio::spawn(Outcome::of(
            one.service.clone().oneshot(of_session("a", "s")),
        )),
        tokio::spawn(Outcome::of(
            two.service.clone().oneshot(of_session("b", "s")),
        )),
        tokio::spawn(Outcome::of(
            two.service.clone().oneshot(of_session("c", "t")),
        )),
    ];
    sleep(secs(2)).await;
    let aborted = one.registry.abort_session(Owner::anonymous(), "s");
    assert_eq!(aborted, [id("a")]);
    heard().await;
    assert_eq!(two.reason("b"), Some(TerminalReason::Aborted));
    assert_eq!(two.reason("c"), None);
    calls[2].abort();
    // Refused at each, whoever held it.
    assert_eq!(
        one.ask("b").await.header("x-terminal-reason"),
        Some("aborted")
    );
    // A run that is opened in the session after the abort lives.
    let later = tokio::spawn(Outcome::of(
        two.service.clone().oneshot(of_session("d", "s")),
    ));
    sleep(secs(2)).await;
    assert_eq!(two.reason("d"), None);
    later.abort();
}

#[tokio::test(start_paused = true)]
async fn a_program_that_reopens_an_id_opens_it_for_all() {
    let [one, two] = replicas(&healthy(), |stack| stack.max_turns(1));
    one.ask("r").await;
    one.ask("r").await;
    assert_eq!(two.ask("r").await.status, 422);

    // The end of the former run arrives late at nobody: it is of another incarnation.
    let run = one.registry.reopen(Owner::anonymous(), &id("r")).unwrap();
    assert_eq!(run.terminal_reason(), None);
    assert_eq!(two.ask("r").await.whole(), healthy_text());
    heard().await;
    assert_eq!(one.ask("r").await.status, 422, "one turn in all");
    heard().await;
    assert_eq!(run.terminal_reason(), Some(TerminalReason::TurnCap));
}

#[tokio::test(start_paused = true)]
async fn a_part_that_is_idle_leaves_its_turns_to_the_rest() {
    let [one, two] = replicas(&healthy(), |stack| {
        stack.max_turns(4).runs(|runs| runs.idle(secs(60)))
    });
    one.ask("r").await;
    one.ask("r").await;
    // The part at `one` completes as idle; the one at `two` works on.
    for _ in 0..4 {
        sleep(secs(40)).await;
        let _tidied = one.registry.list();
        match two.run("r") {
            Some(run) => run.heartbeat(),
            None => assert_eq!(two.ask("r").await.status, 200),
        }
    }
    assert_eq!(one.reason("r"), Some(TerminalReason::Completed));
    assert_eq!(two.reason("r"), None, "an idle part ends nothing elsewhere");
    assert_eq!(
        one.ask("r").await.status,
        200,
        "the fourth turn, in a new part"
    );
    assert_eq!(two.ask("r").await.status, 422);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_completed_everywhere_is_opened_anew() {
    let [one, two] = replicas(&healthy(), |stack| {
        stack.max_turns(1).runs(|runs| runs.idle(secs(60)))
    });
    one.ask("r").await;
    sleep(secs(100)).await;
    let _tidied = one.registry.list();
    assert_eq!(one.reason("r"), Some(TerminalReason::Completed));
    sleep(RunRegistry::REMEMBERED + secs(60)).await;
    let _tidied = one.registry.list();
    assert_eq!(two.ask("r").await.status, 200, "another run of this id");
}

#[tokio::test(start_paused = true)]
async fn both_ends_of_a_race_stay_where_they_were_stored() {
    let [one, two] = replicas(&endless(), |stack| stack);
    let calls = [spawn(&one, "r"), spawn(&two, "r")];
    sleep(secs(1)).await;
    one.run("r").unwrap().end(TerminalReason::Stuck);
    two.run("r").unwrap().end(TerminalReason::Superseded);
    heard().await;
    for call in calls {
        call.await.unwrap();
    }
    assert_eq!(one.reason("r"), Some(TerminalReason::Stuck));
    assert_eq!(two.reason("r"), Some(TerminalReason::Superseded));
    let also = two.run("r").unwrap().snapshot().also;
    assert_eq!(also, [TerminalReason::Stuck], "the store's end");
    let three = Replica::new(&InMemoryRunStore::new(), healthy(), |stack| stack);
    assert_eq!(three.ask("r").await.status, 200, "another store");
}

#[tokio::test(start_paused = true)]
async fn without_the_store_each_replica_has_its_cap_and_tells_its_ends_later() {
    let [one, two] = replicas(&healthy(), |stack| stack.max_turns(3));
    assert_eq!(one.ask("r").await.status, 200);
    assert_eq!(two.ask("r").await.status, 200);
    two.store.cut();
    // The one that is cut off knows of one turn elsewhere.
    let statuses = [two.ask("r").await.status, two.ask("r").await.status];
    assert_eq!(statuses, [200, 422]);
    assert_eq!(
        one.ask("r").await.status,
        200,
        "overshoot of one cap at most"
    );
    assert_eq!(one.reason("r"), None);
    assert_eq!(one.abort("s"), AbortOutcome::Told);

    two.store.mend();
    heard().await;
    assert_eq!(one.reason("r"), Some(TerminalReason::TurnCap));
}

#[tokio::test(start_paused = true)]
async fn turns_that_were_taken_without_the_store_count_as_soon_as_it_is_back() {
    let [one, two] = replicas(&healthy(), |stack| stack.max_turns(6));
    assert_eq!(one.ask("r").await.status, 200);
    assert_eq!(two.ask("r").await.status, 200);
    two.store.cut();
    for _ in 0..3 {
        assert_eq!(two.ask("r").await.status, 200);
    }
    two.store.mend();
    heard().await;
    // Five of six are taken.
    let statuses = [one.ask("r").await.status, one.ask("r").await.status];
    assert_eq!(statuses, [200, 422]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_was_cut_off_ends_what_was_ended_meanwhile() {
    let [one, two] = replicas(&endless(), |stack| stack);
    let call = spawn(&two, "r");
    sleep(secs(1)).await;
    two.store.cut();
    assert_eq!(one.abort("r"), AbortOutcome::Told);
    sleep(secs(30)).await;
    assert_eq!(two.reason("r"), None);
    two.store.mend();
    assert_eq!(call.await.unwrap().reason, Some(TerminalReason::Aborted));
}

#[tokio::test(start_paused = true)]
async fn the_counts_of_a_replica_that_died_stay() {
    let store = InMemoryRunStore::new();
    let set = |stack: AgentStack<Server>| stack.max_turns(3);
    let one = Replica::new(&store, healthy(), set);
    let two = Replica::new(&store, healthy(), set);
    assert_eq!(two.ask("r").await.status, 200);
    one.ask("r").await;
    one.store.cut();
    drop(one);
    let three = Replica::new(&store, healthy(), set);
    assert_eq!(three.ask("r").await.status, 200);
    assert_eq!(two.ask("r").await.status, 422);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_stops_ends_no_run_elsewhere() {
    let [one, two] = replicas(&slow(20.0), |stack| stack.max_turns(9));
    let [here, there] = [spawn(&one, "r"), spawn(&two, "r")];
    sleep(secs(1)).await;
    one.registry.shutdown();
    assert_eq!(here.await.unwrap().reason, Some(TerminalReason::Shutdown));
    heard().await;
    assert_eq!(two.reason("r"), None);
    assert_eq!(there.await.unwrap().status, 200);
    assert_eq!(two.run("r").map(|run| run.turns()), Some(2));
}

/// Its turn would be lost to the others: the refused client repeats the request there.
#[tokio::test(start_paused = true)]
async fn a_replica_that_stops_takes_no_turn() {
    let [one, two] = replicas(&healthy(), |stack| stack.max_turns(2));
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

#[tokio::test(start_paused = true)]
async fn the_stricter_of_two_configurations_ends_the_run_first() {
    let store = InMemoryRunStore::new();
    let strict = Replica::new(&store, healthy(), |stack| stack.max_turns(2));
    let lax = Replica::new(&store, healthy(), |stack| stack.max_turns(9));
    for _ in 0..3 {
        assert_eq!(lax.ask("r").await.status, 200);
    }
    assert_eq!(strict.ask("r").await.status, 422);
    heard().await;
    assert_eq!(lax.ask("r").await.status, 422);
}

#[tokio::test(start_paused = true)]
async fn the_child_of_a_run_that_ended_elsewhere_is_not_served() {
    use tower_agent::layers::run::RequestRun;

    let [one, two] = replicas(&healthy(), |stack| stack);
    assert_eq!(one.ask("parent").await.status, 200);
    one.abort("parent");
    let mut request = prompt("a");
    let child = RequestRun::new(id("child")).child_of(id("parent"));
    request.extensions_mut().insert(child);
    let outcome = two.send(request).await;
    assert_eq!(outcome.header("x-terminal-reason"), Some("aborted"));
    assert_eq!(two.upstream.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_asks_once_and_one_without_an_id_never() {
    let [one] = replicas(&healthy(), |stack| stack);
    one.send(prompt("a")).await;
    assert_eq!(one.store.questions(), 0);
    one.ask("r").await;
    one.ask("r").await;
    assert_eq!(
        one.store.questions(),
        1,
        "the run is held, and nothing caps its turns"
    );

    let [capped] = replicas(&healthy(), |stack| stack.max_turns(9));
    capped.ask("r").await;
    capped.ask("r").await;
    assert_eq!(capped.store.questions(), 2, "one a turn");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_while_the_store_is_asked_keeps_no_turn() {
    let [one, two] = replicas(&healthy(), |stack| stack.max_turns(2));
    for _ in 0..10 {
        let call = one
            .service
            .clone()
            .oneshot(with_header(prompt("a"), "x-run-id", "r"));
        drop(call);
    }
    let statuses = [one.ask("r").await, two.ask("r").await].map(|it| it.status);
    assert_eq!(statuses, [200, 200]);
}

/// What happens to two runs at three replicas, at random.
#[derive(Clone, Copy, Debug)]
enum Event {
    Ask { replica: usize, run: usize },
    Abort { replica: usize, run: usize },
    Cut { replica: usize },
    Mend { replica: usize },
    Wait { millis: u64 },
    Restart { replica: usize },
}

const RUNS: [&str; 2] = ["a", "b"];
const CAP: usize = 6;

fn events(seed: u64) -> Vec<Event> {
    let mut random = fastrand::Rng::with_seed(seed);
    let cuts = random.bool();
    (0..random.usize(10..40))
        .map(|_| {
            let (replica, run) = (random.usize(..3), random.usize(..2));
            match random.u32(..20) {
                0 => Event::Abort { replica, run },
                1 | 2 if cuts => Event::Cut { replica },
                3 | 4 if cuts => Event::Mend { replica },
                5 => Event::Restart { replica },
                6..=9 => Event::Wait {
                    millis: random.u64(1..4000),
                },
                _ => Event::Ask { replica, run },
            }
        })
        .collect()
}

/// Plays the events, then checks what the replicas promise together.
async fn play(seed: u64) {
    let events = events(seed);
    let store = InMemoryRunStore::new();
    let set = |stack: AgentStack<Server>| stack.max_turns(6);
    let new = || Replica::new(&store, slow(1.5), set);
    let mut replicas = [new(), new(), new()];
    let mut cut = [false; 3];
    let (mut served, mut calls) = ([0; 2], Vec::new());
    // How many sides went on by themselves, each with a cap of its own at most.
    let mut sides = 1;
    let mut aborted = [false; 2];
    let count = |replica: &Replica, run: usize| {
        let ids = replica.upstream.header("x-run-id");
        ids.iter()
            .filter(|id| id.as_deref() == Some(RUNS[run]))
            .count()
    };
    for event in &events {
        match *event {
            Event::Ask { replica, run } => {
                let before = aborted[run] && !cut[replica];
                let known = count(&replicas[replica], run);
                let call = spawn(&replicas[replica], RUNS[run]);
                heard().await;
                if before {
                    let now = count(&replicas[replica], run);
                    assert_eq!(now, known, "{seed}: an aborted run was served: {events:?}");
                }
                calls.push((run, call));
            }
            Event::Abort { replica, run } => {
                let lives = |run: Run| run.terminal_reason().is_none();
                let mut joined = (0..3).filter(|at| !cut[*at]);
                let was_known = joined.any(|at| replicas[at].run(RUNS[run]).is_some_and(lives));
                replicas[replica].abort(RUNS[run]);
                aborted[run] |= !cut[replica] && was_known;
            }
            Event::Cut { replica } => {
                replicas[replica].store.cut();
                sides += usize::from(!std::mem::replace(&mut cut[replica], true));
            }
            Event::Mend { replica } => {
                replicas[replica].store.mend();
                cut[replica] = false;
            }
            Event::Restart { replica } => {
                // What a replica that is cut off has to tell is lost with it.
                replicas[replica].store.mend();
                cut[replica] = false;
                heard().await;
                replicas[replica].registry.shutdown();
                heard().await;
                for (run, served) in served.iter_mut().enumerate() {
                    *served += count(&replicas[replica], run);
                }
                replicas[replica] = new();
            }
            Event::Wait { millis } => sleep(Duration::from_millis(millis)).await,
        }
        heard().await;
    }
    for replica in &replicas {
        replica.store.mend();
    }
    let mut refused = [0; 2];
    for (run, call) in calls {
        let outcome = call.await.unwrap();
        refused[run] += usize::from(outcome.status == 422);
        let is_whole = outcome.status == 200 && outcome.text.ends_with(DONE);
        let why = outcome.reason.as_ref();
        let is_cut = matches!(
            why,
            Some(TerminalReason::Aborted | TerminalReason::Shutdown)
        );
        let by_status = matches!(outcome.status, 422 | 499 | 503);
        assert!(
            is_whole || is_cut || by_status,
            "{seed}: an admitted call was not answered in full: {outcome:?}"
        );
    }
    heard().await;
    for run in 0..2 {
        let served = served[run] + replicas.iter().map(|it| count(it, run)).sum::<usize>();
        assert!(
            served <= sides * CAP,
            "{seed}: {served} by {sides}: {events:?}"
        );
        if sides == 1 && refused[run] > 0 && !aborted[run] {
            assert_eq!(served, CAP, "{seed}: {events:?}");
        }
        let ends: Vec<_> = replicas.iter().filter_map(|it| it.run(RUNS[run])).collect();
        let over = ends
            .iter()
            .filter(|run| run.terminal_reason().is_some())
            .count();
        if aborted[run] {
            assert_eq!(over, ends.len(), "{seed}: an end was not heard: {events:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn random_events_at_three_replicas_break_no_promise() {
    let cases = std::env::var("STACKS_CASES").map_or(400, |it| it.parse().unwrap());
    for seed in 0..cases {
        play(seed).await;
    }
}

/// A program tells others of a run by the number that all replicas know.
#[tokio::test(start_paused = true)]
async fn an_incarnation_is_the_same_at_all_replicas_and_another_one_for_the_next_use_of_the_id() {
    let [one, two] = replicas(&healthy(), |stack| stack.runs(|runs| runs.idle(secs(60))));
    let incarnation = |replica: &Replica| replica.run("r")?.snapshot().incarnation;
    one.ask("r").await.whole();
    two.ask("r").await.whole();
    heard().await;
    let first = incarnation(&one);
    assert!(first.is_some());
    assert_eq!(incarnation(&two), first);

    sleep(secs(100)).await;
    let _tidied = (one.registry.list(), two.registry.list());
    sleep(RunRegistry::REMEMBERED + secs(60)).await;
    let _tidied = (one.registry.list(), two.registry.list());
    one.ask("r").await.whole();
    let second = incarnation(&one);
    assert!(second.is_some() && second != first, "{second:?}");

    let alone = RunRegistry::new().open(Owner::default(), id("r"));
    assert_eq!(alone.snapshot().incarnation, None);
}
