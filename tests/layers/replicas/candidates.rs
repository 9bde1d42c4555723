//! Registries that share a store: a cooldown keeps all of them away from a candidate, and a session
//! stays with the one that served it elsewhere.
//!
//! covers: F6, F12

use std::ops::Deref;

use tower_agent::{
    Candidate, Cooldowns, ModelFallbackLayer,
    llm::failure::FailureClass,
    registry::store::{Heard, RunKey, RunNews, RunQuestion, RunStore, SharedCooldown},
};

use super::*;
use crate::support::failure;

/// A replica with candidates.
struct WithCandidates {
    replica: Replica,
    cooldowns: Cooldowns,
}

impl Deref for WithCandidates {
    type Target = Replica;

    fn deref(&self) -> &Replica {
        &self.replica
    }
}

impl WithCandidates {
    fn new(store: &InMemoryRunStore, candidates: &[&str]) -> Self {
        let cooldowns = Cooldowns::new().probe(secs(30), Duration::ZERO);
        Self::with(store, candidates, cooldowns)
    }

    fn with(store: &InMemoryRunStore, candidates: &[&str], cooldowns: Cooldowns) -> Self {
        let candidates = candidates.iter().map(|name| Candidate::new(*name));
        let fallback = ModelFallbackLayer::new(candidates)
            .cooldowns(cooldowns.clone())
            .sticky(true);
        let replica = Replica::new(store, healthy(), |stack| stack.fallback(fallback));
        Self { replica, cooldowns }
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Outcome {
        let outcome = self.replica.send(request).await;
        heard().await;
        outcome
    }

    /// The candidate that serves a request for `model`.
    async fn ask(&self, model: &str) -> String {
        served(&self.send(prompt(model)).await)
    }

    /// The candidate that serves a request of the session.
    async fn in_session(&self, session: &str) -> String {
        let request = with_header(prompt("a"), "x-session-id", session);
        served(&self.send(request).await)
    }

    /// The candidates in a cooldown, each with its class and the time that is left.
    fn cooling(&self) -> Vec<(String, FailureClass, Duration)> {
        let list = self.cooldowns.list().into_iter();
        list.map(|it| (it.candidate, it.class, it.left)).collect()
    }

    /// Has a candidate fail once, and then serve again.
    async fn fail(&self, model: &str) {
        self.upstream.play(model, failure(500));
        self.ask(model).await;
        self.upstream.play(model, healthy());
    }
}

fn served(outcome: &Outcome) -> String {
    let candidate = outcome.header("x-served-candidate");
    candidate.unwrap_or("nobody").to_owned()
}

fn replicas<const N: usize>() -> [WithCandidates; N] {
    let store = InMemoryRunStore::new();
    std::array::from_fn(|_| WithCandidates::new(&store, &["a", "b"]))
}

fn server_failed(left: Duration) -> Vec<(String, FailureClass, Duration)> {
    vec![("a".to_owned(), FailureClass::Server, left)]
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_keeps_all_replicas_away_for_the_time_that_is_left() {
    let [one, two] = replicas();
    one.fail("a").await;
    assert_eq!(two.cooling(), server_failed(secs(30)));
    sleep(secs(20)).await;
    assert_eq!(two.cooling(), server_failed(secs(10)));
    assert_eq!(two.ask("a").await, "b");
    assert_eq!(two.upstream.models(), ["b"], "no call went to it");
    sleep(secs(10)).await;
    assert_eq!(two.ask("a").await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_clear_at_any_replica_clears_all() {
    let [one, two, three] = replicas();
    one.fail("a").await;
    assert_eq!(two.cooldowns.clear("a"), 1);
    heard().await;
    for replica in [&one, &two, &three] {
        assert_eq!(replica.cooling(), []);
        assert_eq!(replica.ask("a").await, "a");
    }
    // One that is cut off still has the window, and one that never heard of it clears it.
    one.fail("a").await;
    two.store.cut();
    let four = WithCandidates::new(&InMemoryRunStore::new(), &["a"]);
    assert_eq!(four.cooldowns.clear("a"), 0);
    assert_eq!(one.cooldowns.clear("a"), 1);
    heard().await;
    assert_eq!((two.cooling().len(), three.cooling().len()), (1, 0));
    two.store.mend();
    heard().await;
    assert_eq!(two.cooling(), []);
    assert_eq!(one.cooling(), [], "nobody begins it again");
}

#[tokio::test(start_paused = true)]
async fn a_clear_spares_what_began_after_it() {
    let [one, two] = replicas();
    one.store.cut();
    assert_eq!(one.cooldowns.clear("a"), 0);
    sleep(secs(5)).await;
    two.fail("a").await;
    one.store.mend();
    heard().await;
    assert_eq!(two.cooling(), server_failed(secs(30)));
    assert_eq!(one.cooling(), server_failed(secs(30)));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_served_in_a_window_ends_it_at_all() {
    let store = InMemoryRunStore::new();
    let probing = || Cooldowns::new().probe(secs(10), secs(120));
    let [one, two] = [(); 2].map(|()| WithCandidates::with(&store, &["a", "b"], probing()));
    one.fail("a").await;
    sleep(secs(15)).await;
    assert_eq!(two.ask("a").await, "a", "a probe");
    assert_eq!((one.cooling(), two.cooling()), (vec![], vec![]));
    assert_eq!(one.ask("a").await, "a");
}

#[tokio::test(start_paused = true)]
async fn a_success_that_began_before_the_window_clears_nothing() {
    let [one, two] = replicas();
    let slow = Script::sse().data(PRELUDE).data(chat("a")).wait(10.0);
    for replica in [&one, &two] {
        let slow = slow.clone().data(FINISH).data(DONE);
        replica.upstream.play("a", slow);
    }
    let calls = [&one, &two].map(|replica| {
        let call = replica.service.clone().oneshot(prompt("a"));
        tokio::spawn(Outcome::of(call))
    });
    sleep(secs(1)).await;
    one.fail("a").await;
    for call in calls {
        assert_eq!(served(&call.await.unwrap()), "a");
    }
    heard().await;
    let left = one.cooling()[0].2;
    assert!(left > secs(20), "{left:?}");
    assert_eq!(two.cooling(), server_failed(left));
}

#[tokio::test(start_paused = true)]
async fn replicas_find_a_candidate_in_whatever_order_and_keep_nothing_for_others() {
    let store = InMemoryRunStore::new();
    let one = WithCandidates::new(&store, &["c", "a", "b"]);
    let two = WithCandidates::new(&store, &["b", "a"]);
    one.fail("a").await;
    one.fail("c").await;
    assert_eq!(one.cooling().len(), 2);
    assert_eq!(two.cooling(), server_failed(secs(30)));
    assert_eq!(two.cooldowns.len(), 1);
    assert_eq!(two.ask("a").await, "b");
    // The other replica learns of the one that it has.
    two.fail("b").await;
    assert_eq!(one.cooling().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_refused_key_of_a_caller_is_left_alone_everywhere_and_no_other_one() {
    let [one, two] = replicas();
    let of_caller = |key: &'static str| with_header(prompt("a"), "authorization", key);
    one.upstream.play("a", failure(401));
    one.send(of_caller("Bearer one")).await;
    assert_eq!(two.cooling()[0].1, FailureClass::Auth);
    let refused = two.send(of_caller("Bearer one")).await;
    assert_eq!((served(&refused).as_str(), refused.status), ("nobody", 503));
    assert_eq!(served(&two.send(of_caller("Bearer two")).await), "a");
    // A host that no candidate here has.
    let mut told = one.store.clone().cooldowns().await.unwrap().running[0].clone();
    two.cooldowns.clear("a");
    heard().await;
    (told.host, told.window) = (told.host ^ 1, 1);
    one.store.tell(RunNews::CooldownBegan(told));
    heard().await;
    assert!(one.cooldowns.is_empty() && two.cooldowns.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_starts_reads_what_runs_and_one_that_was_cut_off_tells_and_reads() {
    let store = InMemoryRunStore::new();
    let one = WithCandidates::new(&store, &["a", "b"]);
    one.fail("a").await;
    sleep(secs(12)).await;
    drop(one);
    let [two, three] = [(); 2].map(|()| WithCandidates::new(&store, &["b", "a"]));
    heard().await;
    assert_eq!(two.cooling(), server_failed(secs(18)));
    assert_eq!(two.ask("a").await, "b");

    two.store.cut();
    two.fail("b").await;
    three.cooldowns.clear("a");
    heard().await;
    assert_eq!(two.cooling().len(), 2);
    sleep(secs(8)).await;
    two.store.mend();
    heard().await;
    let expected = vec![("b".to_owned(), FailureClass::Server, secs(22))];
    assert_eq!(
        (two.cooling(), three.cooling()),
        (expected.clone(), expected)
    );
}

#[tokio::test(start_paused = true)]
async fn a_window_that_is_told_never_shortens_a_longer_one() {
    let [one, two] = replicas();
    two.store.cut();
    // Three failures in a row: the third window is of 5 minutes.
    for _ in 0..3 {
        two.fail("a").await;
        let left = two.cooling()[0].2;
        if left < secs(300) {
            sleep(left).await;
        }
    }
    one.fail("a").await;
    assert_eq!(one.cooling(), server_failed(secs(30)));
    let [mut told] = [one.store.clone().cooldowns().await.unwrap().running[0].clone()];
    two.store.mend();
    heard().await;
    assert_eq!(two.cooling(), server_failed(secs(300)));
    assert_eq!(
        one.cooling(),
        server_failed(secs(300)),
        "the longer one holds"
    );

    // The same key once more, shorter: it is ignored. Longer, and it holds with its class.
    let mut news = |window, class, left| {
        told.window = window;
        told.class = class;
        told.until = Instant::now() + left;
        RunNews::CooldownBegan(told.clone())
    };
    let other = one.store.clone();
    other.tell(news(1, FailureClass::Overloaded, secs(100)));
    heard().await;
    assert_eq!(two.cooling(), server_failed(secs(300)));
    other.tell(news(2, FailureClass::Overloaded, secs(600)));
    heard().await;
    let longer = ("a".to_owned(), FailureClass::Overloaded, secs(600));
    for replica in [&one, &two] {
        assert_eq!(replica.cooling(), std::slice::from_ref(&longer));
    }
    // An end of a window that is no longer the one changes nothing; that of the last ends it.
    other.tell(RunNews::CooldownEnded {
        key: told.key,
        window: 1,
    });
    heard().await;
    assert_eq!(two.cooling().len(), 1);
    other.tell(RunNews::CooldownEnded {
        key: told.key,
        window: 2,
    });
    heard().await;
    assert_eq!((one.cooling(), two.cooling()), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn two_windows_at_once_are_one_that_either_replica_can_end() {
    let store = InMemoryRunStore::new();
    let probing = || Cooldowns::new().probe(secs(10), secs(120));
    for ends in [0, 1] {
        let replicas = [(); 2].map(|()| WithCandidates::with(&store, &["a", "b"], probing()));
        let [one, two] = &replicas;
        for replica in &replicas {
            replica.store.cut();
        }
        one.fail("a").await;
        two.fail("a").await;
        one.store.mend();
        two.store.mend();
        heard().await;
        assert_eq!((one.cooling().len(), two.cooling().len()), (1, 1));
        sleep(secs(15)).await;
        assert_eq!(replicas[ends].ask("a").await, "a", "a probe");
        assert_eq!((one.cooling(), two.cooling()), (vec![], vec![]), "{ends}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_follows_elsewhere_goes_on_with_the_row() {
    let [one, two] = replicas();
    one.fail("a").await;
    sleep(secs(30)).await;
    two.fail("a").await;
    assert_eq!(two.cooling(), server_failed(secs(60)));
    assert_eq!(one.cooling(), server_failed(secs(60)));
}

#[tokio::test(start_paused = true)]
async fn a_session_goes_to_the_candidate_that_served_it_elsewhere() {
    let store = InMemoryRunStore::new();
    let one = WithCandidates::new(&store, &["a", "b", "c"]);
    let two = WithCandidates::new(&store, &["c", "b", "a"]);
    let three = WithCandidates::new(&store, &["a"]);
    one.upstream.play("a", failure(500));
    assert_eq!(one.in_session("s").await, "b");
    sleep(secs(30)).await;
    let questions = two.store.questions();
    assert_eq!(two.in_session("s").await, "b");
    assert_eq!(two.store.questions(), questions, "nothing is asked for it");
    assert_eq!(two.in_session("t").await, "a", "another session");
    assert_eq!(three.in_session("s").await, "a", "it has no such candidate");
    // So it has moved to that one, for all.
    two.upstream.play("a", failure(500));
    assert_eq!(two.in_session("s").await, "c");
    assert_eq!(two.upstream.models(), ["b", "a", "a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_hint_to_a_candidate_in_a_cooldown_is_not_followed() {
    let [one, two] = replicas();
    one.upstream.play("a", failure(500));
    assert_eq!(one.in_session("s").await, "b");
    one.cooldowns.clear("a");
    heard().await;
    two.fail("b").await;
    assert_eq!(two.in_session("s").await, "a");
    assert_eq!(two.upstream.models(), ["b", "a", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_starts_gets_the_hint_with_the_answer_about_the_run() {
    let store = InMemoryRunStore::new();
    let one = WithCandidates::new(&store, &["a", "b", "c"]);
    one.upstream.play("a", failure(500));
    assert_eq!(one.in_session("s").await, "b");
    sleep(secs(30)).await;
    drop(one);
    let two = WithCandidates::new(&store, &["c", "a", "b"]);
    let named = |session: &'static str, run: &'static str| {
        let request = with_header(prompt("a"), "x-session-id", session);
        with_header(request, "x-run-id", run)
    };
    assert_eq!(served(&two.send(named("s", "r")).await), "b");
    assert_eq!(served(&two.send(named("t", "q")).await), "a");
    assert_eq!(two.store.questions(), 2);

    let run = RunKey {
        owner: Owner::anonymous(),
        id: "q".parse().unwrap(),
    };
    let mut question = RunQuestion::new(run, 1);
    question.session = Some("s".into());
    let answer = two.store.clone().ask(question.clone()).await.unwrap();
    assert_eq!(answer.candidates, [], "it did not ask for them");
    question.is_sticky = true;
    let answer = two.store.clone().ask(question).await.unwrap();
    assert_eq!(answer.candidates.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn only_a_change_is_told_and_nothing_without_a_session() {
    let store = InMemoryRunStore::new();
    let one = WithCandidates::new(&store, &["a", "b"]);
    let other = store.replica();
    let told = async || {
        let next = tokio::time::timeout(secs(1), Arc::clone(&other).next());
        next.await.ok()
    };
    for _ in 0..3 {
        one.ask("a").await;
    }
    assert!(told().await.is_none());
    for _ in 0..3 {
        one.in_session("s").await;
    }
    assert!(matches!(told().await, Some(Heard::SessionServed(_))));
    assert!(told().await.is_none(), "the same candidate again");
    assert_eq!(one.store.questions(), 0);
}

#[test]
fn the_longer_window_replaces_and_no_rate_limit_hides_a_refused_key() {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().build().unwrap();
    let _entered = runtime.enter();
    let now = Instant::now();
    let window = |class, left: u64| {
        let times = [now, now + secs(left)];
        let mut window = SharedCooldown::new(7, left, "a".into(), class, times);
        window.account = 7;
        window
    };
    let (limit, refused) = (FailureClass::RateLimit, FailureClass::Auth);
    assert!(window(limit, 60).replaces(&window(limit, 30)));
    assert!(!window(limit, 30).replaces(&window(limit, 30)));
    assert!(window(refused, 10).replaces(&window(limit, 30)));
    let mut of_model = window(refused, 10);
    of_model.account = 8;
    assert!(!of_model.replaces(&window(limit, 30)));
}
