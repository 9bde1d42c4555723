//! What several threads do at once, over and over.

use std::{
    collections::HashMap,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use tower_agent::{RunEvent, RunRegistry, TerminalReason, registry::AbortOutcome};

use super::{id, us};

const ROUNDS: usize = 500;

fn at_once<const N: usize>(work: [&(dyn Fn() + Sync); N]) {
    let barrier = Barrier::new(N);
    thread::scope(|scope| {
        for work in work {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                work();
            });
        }
    });
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().unwrap()
}

/// covers: C4
#[test]
fn an_abort_an_end_and_a_wait_agree_on_one_end() {
    for _ in 0..ROUNDS {
        let registry = RunRegistry::new();
        let mut events = registry.subscribe();
        let run = registry.open(us(), id("r"));
        let won = std::sync::atomic::AtomicUsize::new(0);
        let abort = || {
            let ours = registry.abort(us(), &id("r")) == AbortOutcome::Ended;
            won.fetch_add(usize::from(ours), std::sync::atomic::Ordering::SeqCst);
        };
        let end = || {
            let ours = run.end(TerminalReason::TurnCap);
            won.fetch_add(usize::from(ours), std::sync::atomic::Ordering::SeqCst);
        };
        let wait = || {
            let ended = runtime()
                .block_on(async { registry.wait(us(), &id("r"), RunRegistry::WAIT).await });
            assert_eq!(Some(super::ended(ended).0), run.terminal_reason());
        };
        at_once([&abort, &abort, &end, &wait]);

        assert_eq!(won.into_inner(), 1);
        drop((registry, run));
        let told = runtime().block_on(async {
            let mut ends = 0;
            while let Some(event) = events.next().await {
                ends += usize::from(matches!(event, RunEvent::Ended { .. }));
            }
            ends
        });
        assert_eq!(told, 1);
    }
}

/// covers: C10
#[test]
fn whoever_opens_while_it_shuts_down_is_ended_or_refused() {
    for _ in 0..ROUNDS {
        let registry = RunRegistry::new();
        let open = || {
            for n in 0..4 {
                let _run = registry.open(us(), id(&n.to_string()));
            }
        };
        let shutdown = || {
            registry.shutdown();
        };
        at_once([&open, &open, &shutdown]);

        let live = registry.list();
        assert!(live.iter().all(|run| run.reason.is_some()), "{live:?}");
    }
}

/// covers: C8
#[test]
fn every_run_of_an_id_is_told_of_however_quickly_it_is_opened_anew() {
    let registry = RunRegistry::new();
    let mut events = registry.subscribe();
    let work = || {
        for _ in 0..50 {
            let run = registry.open(us(), id("r"));
            run.end(TerminalReason::Completed);
        }
    };
    for _ in 0..3 {
        at_once([&work, &work, &work]);
    }
    let runs = registry.get(us(), &id("r")).unwrap().snapshot().generation;
    drop(registry);

    let (mut ended, mut last) = (0, 0);
    runtime().block_on(async {
        while let Some(event) = events.next().await {
            let number = match event {
                RunEvent::Notice {
                    registry_sequence, ..
                } => registry_sequence,
                RunEvent::Ended {
                    registry_sequence, ..
                } => {
                    ended += 1;
                    registry_sequence
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(number, Some(last + 1));
            last += 1;
        }
    });
    assert_eq!(ended, runs, "as often as it was opened");
}

/// One who opens, until it is dropped, be it by a panic.
struct Opening<'a>(&'a AtomicUsize);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The oldest run of the session is the program's; its sub-agents beside it come and go.
#[test]
fn of_those_who_open_wait_end_and_abort_a_session_at_once_none_is_lost() {
    const EACH: usize = 100;
    for round in 0..20 {
        let registry = RunRegistry::new();
        let mut events = registry.subscribe();
        let parent = runtime().block_on(super::opened(&registry, us(), "r", "s"));
        let (left, aborted) = (AtomicUsize::new(2), AtomicUsize::new(0));
        let open = || {
            let _opening = Opening(&left);
            runtime().block_on(async {
                for n in 0..EACH {
                    let run = parent.child_detached();
                    let wait = registry.wait(us(), &run.id(), RunRegistry::WAIT);
                    let ended = tokio::join!(wait, async {
                        if (n + round) % 3 == 0 {
                            run.end(TerminalReason::Completed);
                        }
                    });
                    super::ended(ended.0);
                    assert!(run.terminal_reason().is_some());
                }
            });
        };
        let abort = || {
            while left.load(Ordering::SeqCst) > 0 {
                let ours = registry.abort_session(us(), "s").len();
                aborted.fetch_add(ours, Ordering::SeqCst);
                thread::yield_now();
            }
        };
        at_once([&open, &open, &abort, &abort]);

        assert!(registry.find_session("s").is_empty(), "nobody is left");
        drop((registry, parent));
        let mut ends = HashMap::new();
        runtime().block_on(async {
            while let Some(event) = events.next().await {
                match event {
                    RunEvent::Ended { run, reason, .. } => {
                        assert_eq!(ends.insert(run, reason), None, "one end each");
                    }
                    RunEvent::Notice { run, .. } => {
                        assert!(!ends.contains_key(&run), "nothing after the end");
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        let all = 2 * EACH + 1;
        let by_abort = |reason: &&TerminalReason| **reason == TerminalReason::Aborted;
        assert_eq!(ends.len(), all);
        assert_eq!(
            ends.values().filter(by_abort).count(),
            aborted.into_inner(),
            "each is in one answer"
        );
    }
}
