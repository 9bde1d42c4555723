mod entries;
mod keys;
mod model;
mod owner_caps;
mod secret;

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::time::{Instant, advance};

use super::{Finder, OwnerCaps, RunRegistry, entries::Entries, owner_caps::Owner};
use crate::run::{Run, RunEvents, RunId, RunNotice, TerminalReason};

/// As a request does that is served.
fn enter(registry: &RunRegistry, id: RunId, session: Option<Arc<str>>, idle: Duration) -> Run {
    let run = registry.find_with(Owner::default(), id, session, idle, Finder::Request, None);
    run.run_state().set_used();
    run
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_run_that_was_forgotten() {
    for reason in [TerminalReason::Completed, TerminalReason::Aborted] {
        let registry = RunRegistry::new();
        let open = |id: &str, session: Option<&str>| {
            let session = session.map(Arc::from);
            let id = id.parse().unwrap();
            let run = enter(&registry, id, session, RunRegistry::IDLE);
            run.end(reason.clone());
            Arc::downgrade(run.node())
        };
        // The last opens an id anew, if that has completed.
        let nodes = [open("a", None), open("b", Some("s")), open("b", Some("s"))];
        assert!(nodes[0].upgrade().is_some(), "remembered");

        tokio::time::sleep(RunRegistry::REMEMBERED).await;

        assert!(registry.list().is_empty());
        assert!(nodes.iter().all(|node| node.upgrade().is_none()));
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_limit_of_nothing_is_looked_at_once() {
    let registry = RunRegistry::new();
    let id = "a".parse().unwrap();
    let run = enter(&registry, id, None, Duration::ZERO);
    run.node().end_work(run.now());
    // It would be due again at once, for ever.
    let _tidied = registry.list();
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_found_does_not_complete_before_it_is_worked_on() {
    let registry = RunRegistry::new();
    let second = Duration::from_secs(1);
    let find = || enter(&registry, "a".parse().unwrap(), None, second);
    let run = find();
    advance(10 * second).await;
    let _tidied = registry.list();
    assert_eq!(run.terminal_reason(), None, "the call comes next");

    run.node().end_work(run.now());
    advance(second).await;
    let _tidied = registry.list();
    assert_eq!(run.terminal_reason(), Some(TerminalReason::Completed));
    assert_ne!(find().node().number(), run.node().number());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_about_to_complete_is_not_found_any_more() {
    let registry = RunRegistry::new();
    let second = Duration::from_secs(1);
    let find = || enter(&registry, "a".parse().unwrap(), None, second);
    let old = find();
    old.node().end_work(old.now());
    advance(second).await;
    // As if another thread was between its look and the end.
    let key = registry.state.key(Owner::default(), old.id());
    let place = old.node().identity().unwrap().place;
    let retire = |entries: &mut Entries| entries.retire(place, Instant::now());
    assert_eq!(registry.state.with(&key, retire), Some(Ok(())));

    // Not by a look that would complete it first.
    let reusable = |entries: &mut Entries| entries.reusable(&key, Instant::now());
    assert!(registry.state.with(&key, reusable).is_none());
    assert_eq!(old.terminal_reason(), None);

    let new = find();
    assert_ne!(new.node().number(), old.node().number());
    assert_eq!(new.snapshot().generation, 2);
    old.end(TerminalReason::Completed);
    assert_eq!(new.terminal_reason(), None);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_about_to_complete_is_no_longer_open_for_its_owner() {
    for adopts in [false, true] {
        let (registry, second) = (RunRegistry::new(), Duration::from_secs(1));
        let caps = OwnerCaps::new().max_open_runs(1);
        let open = || {
            registry
                .count_owners()
                .open(Owner::default(), caps, false, None)
        };
        let old = enter(&registry, "a".parse().unwrap(), None, second);
        old.node().count_as(Box::new(open().unwrap()));
        old.node().end_work(old.now());
        advance(second).await;
        // As if another thread was between its look and the end.
        let key = registry.state.key(Owner::default(), old.id());
        let place = old.node().identity().unwrap().place;
        let now = Instant::now();
        let look = |entries: &mut Entries| (entries.due(now).len(), entries.retire(place, now));
        assert_eq!(registry.state.with(&key, look), (1, Some(Ok(()))));

        let _new = match adopts {
            true => {
                let (run, id) = (Run::open(), Some(old.id()));
                let session = None;
                let owner = Owner::default();
                assert!(registry.adopt(&run, owner, id, session, second, Finder::Request));
                run
            }
            false => enter(&registry, old.id(), None, second),
        };

        assert_eq!(old.terminal_reason(), None);
        assert!(open().is_ok(), "adopts: {adopts}");
    }
}

/// Threads that send notices, subscribe and end runs, at once: no observer sees a gap.
/// covers: B6
#[test]
fn no_observer_sees_a_gap_in_the_numbers_of_a_run() {
    const NOTICES: usize = 5;
    for _ in 0..300 {
        let registry = RunRegistry::new();
        let all = registry.subscribe();
        let runs: Vec<_> = (0..2)
            .map(|n| registry.open(Owner::default(), format!("r-{n}").parse().unwrap()))
            .collect();
        let barrier = std::sync::Barrier::new(6);
        let observers: Vec<_> = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for run in &runs {
                for thread in 0..3 {
                    let barrier = &barrier;
                    threads.push(scope.spawn(move || {
                        barrier.wait();
                        (0..NOTICES).for_each(|_| run.notify(&RunNotice::Asked));
                        let observer = run.subscribe();
                        (0..NOTICES).for_each(|_| run.notify(&RunNotice::Asked));
                        if thread == 0 {
                            run.end(TerminalReason::Aborted);
                        }
                        observer
                    }));
                }
            }
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        drop(registry);
        for observer in observers.into_iter().chain([all]) {
            assert_no_gap(observer);
        }
    }
}

/// Each run's numbers go up by one, up to its end.
fn assert_no_gap(mut observer: RunEvents) {
    let mut last = std::collections::HashMap::new();
    let next = || observer.next().now_or_never().expect("all has happened");
    for event in std::iter::from_fn(next) {
        let event = serde_json::to_value(event).unwrap();
        let (run, number) = (event["run"].to_string(), event["sequence"].as_u64());
        let before = last.insert(run, (number, event["event"] == "ended"));
        if let Some((before, ended)) = before {
            assert!(!ended, "an event after the end: {event}");
            assert_eq!(number, before.map(|number| number + 1), "{event}");
        }
    }
    assert!(last.values().all(|(_, ended)| *ended), "{last:?}");
}
