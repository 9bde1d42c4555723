//! What several threads do at once, over and over.

use std::{sync::Barrier, thread};

use tower_agent::{RunEvent, RunRegistry, TerminalReason};

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

#[test]
fn an_abort_an_end_and_a_wait_agree_on_one_end() {
    for _ in 0..ROUNDS {
        let registry = RunRegistry::new();
        let mut events = registry.subscribe();
        let run = registry.open(us(), id("r"));
        let won = std::sync::atomic::AtomicUsize::new(0);
        let abort = || {
            let ours = registry.abort(us(), &id("r"));
            won.fetch_add(usize::from(ours), std::sync::atomic::Ordering::SeqCst);
        };
        let end = || {
            let ours = run.end(TerminalReason::TurnCap);
            won.fetch_add(usize::from(ours), std::sync::atomic::Ordering::SeqCst);
        };
        let wait = || {
            let ended = runtime().block_on(async {
                let wait = registry.wait(us(), &id("r"), RunRegistry::WAIT);
                wait.unwrap().await
            });
            assert_eq!(ended.unwrap().reason, run.terminal_reason());
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
            let sequence = match event {
                RunEvent::Notice { sequence, .. } => sequence,
                RunEvent::Ended { sequence, .. } => {
                    ended += 1;
                    sequence
                }
                other => panic!("{other:?}"),
            };
            assert_eq!(sequence, last + 1);
            last = sequence;
        }
    });
    assert_eq!(ended, runs, "as often as it was opened");
}
