//! covers: C4

use tower::{Layer, ServiceExt};
use tower_agent::{
    Owner, Run, RunEvent, RunLayer, RunNotice, RunRegistry, TerminalReason, registry::AbortOutcome,
};

use super::{id, opened, us};
use crate::support::{DONE, ReadExt, Script, Upstream, request};

const THEM: &[u8] = b"key";

#[tokio::test(start_paused = true)]
async fn all_live_runs_of_the_owners_session_end_in_the_order_of_opening() {
    let registry = RunRegistry::new();
    let names = ["z", "b", "x", "a", "m"];
    let mut runs = Vec::new();
    for name in names {
        runs.push(opened(&registry, us(), name, "s").await);
    }
    let elsewhere = opened(&registry, us(), "elsewhere", "t").await;
    let theirs = opened(&registry, Owner::of(THEM), "z", "s").await;
    let none = registry.open(us(), id("none"));
    runs[2].end(TerminalReason::TurnCap);

    assert_eq!(
        registry.abort_session(us(), "s"),
        ["z", "b", "a", "m"].map(id)
    );
    assert!(registry.abort_session(us(), "s").is_empty(), "once");
    assert!(registry.abort_session(us(), "unknown").is_empty());

    let reasons = runs.iter().map(Run::terminal_reason);
    let aborted = Some(TerminalReason::Aborted);
    let capped = Some(TerminalReason::TurnCap);
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        [&aborted, &aborted, &capped, &aborted, &aborted].map(Clone::clone)
    );
    for run in [elsewhere, theirs, none] {
        assert_eq!(run.terminal_reason(), None, "nothing was touched");
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_after_others_have_left_is_the_last_of_its_session() {
    let registry = RunRegistry::new();
    let first = opened(&registry, us(), "a", "s").await;
    let _second = opened(&registry, us(), "b", "s").await;
    first.end(TerminalReason::Completed);
    let _third = opened(&registry, us(), "c", "s").await;
    let _theirs = opened(&registry, Owner::of(THEM), "d", "s").await;
    let _fourth = opened(&registry, us(), "e", "s").await;

    let found = registry.find_session("s");
    let found: Vec<_> = found.iter().map(Run::id).collect();
    assert_eq!(found, ["b", "c", "d", "e"].map(id));
    assert_eq!(registry.abort_session(us(), "s"), ["b", "c", "e"].map(id));
}

#[tokio::test(start_paused = true)]
async fn an_operator_finds_a_session_of_all_owners_and_only_what_lives() {
    let registry = RunRegistry::new();
    let ours = opened(&registry, us(), "r", "s").await;
    let theirs = opened(&registry, Owner::of(THEM), "r", "s").await;
    opened(&registry, us(), "other", "t").await;
    let found = registry.find_session("s");
    assert_eq!(found.len(), 2);

    assert!(found[0].end(TerminalReason::Aborted));

    assert_eq!(ours.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(theirs.terminal_reason(), None);
    assert_eq!(registry.find_session("s").len(), 1);
    theirs.end(TerminalReason::Aborted);
    assert!(registry.find_session("s").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_abort_is_told_and_no_longer_lives_when_the_first_is_woken() {
    let registry = RunRegistry::new();
    let mut events = registry.subscribe();
    let run = opened(&registry, us(), "r", "s").await;
    let watching = tokio::spawn({
        let (registry, run) = (registry.clone(), run.clone());
        async move {
            run.ended().await;
            (
                registry.find_session("s").len(),
                registry.abort(us(), &id("r")),
            )
        }
    });
    tokio::task::yield_now().await;

    assert_eq!(registry.abort(us(), &id("r")), AbortOutcome::Ended);

    assert_eq!(watching.await.unwrap(), (0, AbortOutcome::AlreadyOver));
    let opened = events.next().await;
    let is_opened = |event| matches!(event, Some(RunEvent::Notice { notice, .. }) if notice == RunNotice::Opened);
    assert!(is_opened(opened));
    let Some(RunEvent::Ended { session, .. }) = events.next().await else {
        panic!()
    };
    assert_eq!(session.as_deref(), Some("s"));
}

/// covers: C8
#[tokio::test(start_paused = true)]
async fn many_observers_each_get_everything_as_json() {
    let registry = RunRegistry::new();
    let observers: Vec<_> = (0..20).map(|_| registry.subscribe()).collect();
    opened(&registry, us(), "r", "s").await;
    registry.abort(us(), &id("r"));
    drop(registry);

    for mut observer in observers {
        let mut seen = Vec::new();
        while let Some(event) = observer.next().await {
            seen.push(serde_json::to_value(&event).unwrap());
        }
        assert_eq!(seen.len(), 2);
        assert_eq!(seen[0]["notice"]["kind"], "opened");
        assert_eq!(seen[1]["event"], "ended");
        assert_eq!(seen[1]["reason"], "aborted");
        assert_eq!(seen[1]["sequence"], 2);
        assert_eq!(seen[1]["snapshot"]["generation"], 1);
    }
}

/// covers: C4
#[tokio::test(start_paused = true)]
async fn the_program_opens_a_run_in_a_session_and_moves_none() {
    let registry = RunRegistry::new();
    let theirs = opened(&registry, us(), "asked", "s").await;
    let ours = registry.open_in(us(), id("ours"), id("s"));
    let alone = registry.open(us(), id("alone"));

    assert_eq!(ours.session().as_deref(), Some("s"));
    for (name, session) in [("ours", Some("s")), ("alone", None), ("asked", Some("s"))] {
        let found = registry.open_in(us(), id(name), id("other"));
        assert_eq!(found.session().as_deref(), session, "it stays there");
    }
    assert!(registry.find_session("other").is_empty());
    assert!(registry.abort_session(Owner::of(b"key"), "s").is_empty());
    assert_eq!(registry.abort_session(us(), "s"), [id("asked"), id("ours")]);
    assert_eq!(theirs.terminal_reason(), Some(TerminalReason::Aborted));
    assert_eq!(alone.terminal_reason(), None);
}

/// Each without a key is the same owner to the other, and not the program.
/// covers: C4
#[tokio::test(start_paused = true)]
async fn a_request_without_a_key_does_not_reach_the_programs_runs() {
    let registry = RunRegistry::new();
    let ours = registry.open_in(Owner::default(), id("r"), id("s"));
    let upstream = Upstream::script(Script::sse().data(DONE));
    let mut asked = request();
    for (name, value) in [("x-run-id", "r"), ("x-session-id", "s")] {
        asked.headers_mut().insert(name, value.parse().unwrap());
    }
    let answer = RunLayer::new(registry.clone())
        .layer(upstream)
        .oneshot(asked);
    answer.await.unwrap().into_body().read().await.whole();

    assert_eq!(registry.find(&id("r")).len(), 2);
    assert_eq!(registry.abort_session(Owner::anonymous(), "s"), [id("r")]);
    assert_eq!(ours.terminal_reason(), None);
    assert_eq!(
        registry.abort(Owner::default(), &id("r")),
        AbortOutcome::Ended
    );
}
