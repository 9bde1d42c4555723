//! Gateways that are killed, stopped and started anew.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{Cluster, PATIENT, outcome, request, turn, until_refused};
use crate::{
    net::{eventually, run, run_alone},
    support::Gateway,
};

/// covers: H4
#[test]
fn a_gateway_that_was_killed_knows_what_had_ended_and_what_was_used_up() {
    run(async {
        let settings = "[run]\nmax_turns = 30";
        let Some(cluster) = Cluster::start(settings, PATIENT).await else {
            return;
        };
        let [one, two] = cluster.gateways().await;
        assert_eq!(turn(&one, "ended").await.status, 200);
        assert!(one.abort("ended").await);
        until_refused(&two, "ended", "aborted").await;
        for _ in 0..20 {
            assert_eq!(turn(&one, "used").await.status, 200);
        }
        one.process.kill().await;
        let again = cluster.gateway().await;
        let calls = cluster.simulator.simulated_calls("sim-healthy").await;
        assert_eq!(
            outcome(&turn(&again, "ended").await),
            (499, Some("aborted"))
        );
        assert_eq!(
            cluster.simulator.simulated_calls("sim-healthy").await,
            calls
        );
        for _ in 0..10 {
            assert_eq!(turn(&again, "used").await.status, 200);
        }
        assert_eq!(
            outcome(&turn(&again, "used").await),
            (422, Some("turn_cap_reached"))
        );
    });
}

/// What the clients of one run have seen.
#[derive(Debug, Default)]
struct Seen {
    served: AtomicUsize,
    /// Refused by a gateway that stopped: its client repeats the request elsewhere.
    stopped: AtomicUsize,
    refused: AtomicUsize,
}

/// covers: H4, C5
#[test]
fn a_rolling_restart_ends_no_run_and_gives_no_cap_anew() {
    const TURNS: usize = 300;
    run_alone(async {
        let settings = format!("[run]\nmax_turns = {TURNS}\n[control]\ndrain = \"20s\"");
        let Some(cluster) = Cluster::start(&settings, PATIENT).await else {
            return;
        };
        let gateways: [Gateway; 3] = cluster.gateways().await;
        let slots = Arc::new(Mutex::new(gateways.map(Arc::new)));
        let is_rolled = Arc::new(AtomicBool::new(false));
        let client = |run: usize, client: usize, seen: Arc<Seen>| -> JoinHandle<()> {
            let (slots, is_rolled) = (Arc::clone(&slots), Arc::clone(&is_rolled));
            tokio::spawn(async move {
                for next in client.. {
                    let gateway = Arc::clone(&slots.lock().unwrap()[next % 3]);
                    let request = request(&gateway, "sim-healthy", false, &format!("r-{run}"));
                    // A gateway that has gone refuses the connection.
                    let Ok(answer) = request.send().await else {
                        continue;
                    };
                    match answer.status().as_u16() {
                        200 => {
                            answer.bytes().await.unwrap();
                            seen.served.fetch_add(1, Ordering::Relaxed);
                        }
                        503 => {
                            assert_eq!(answer.headers()["x-terminal-reason"], "shutdown");
                            seen.stopped.fetch_add(1, Ordering::Relaxed);
                        }
                        422 => {
                            assert!(is_rolled.load(Ordering::Relaxed), "the run has ended");
                            seen.refused.fetch_add(1, Ordering::Relaxed);
                            return;
                        }
                        status => panic!("{status}"),
                    }
                    if !is_rolled.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            })
        };
        let seen: [Arc<Seen>; 3] = Default::default();
        let clients: Vec<_> = (0..6)
            .map(|at| client(at / 2, at, Arc::clone(&seen[at / 2])))
            .collect();
        sleep(Duration::from_secs(1)).await;
        for slot in 0..3 {
            let old = Arc::clone(&slots.lock().unwrap()[slot]);
            let long = request(&old, "sim-slow", false, "long").send();
            let long = tokio::spawn(long);
            sleep(Duration::from_millis(500)).await;
            old.signal("TERM");
            let long = long.await.unwrap().unwrap();
            assert_eq!(long.status(), 200, "a call under way is cut");
            let new = Arc::new(cluster.gateway().await);
            slots.lock().unwrap()[slot] = new;
            // The clients drop their references soon.
            let old = eventually(async || (Arc::strong_count(&old) == 1).then_some(())).await;
            let () = old;
        }
        let before: Vec<_> = seen
            .iter()
            .map(|it| it.served.load(Ordering::Relaxed))
            .collect();
        is_rolled.store(true, Ordering::Relaxed);
        for client in clients {
            timeout(Duration::from_secs(60), client)
                .await
                .unwrap()
                .unwrap();
        }
        for (run, (seen, before)) in seen.iter().zip(before).enumerate() {
            eprintln!(
                "run {run}: {before} turns while three gateways were restarted, {seen:?} in all"
            );
            assert!(before < TURNS, "the restart took too long for this test");
            assert_eq!(seen.served.load(Ordering::Relaxed), TURNS);
        }
        let gateway = Arc::clone(&slots.lock().unwrap()[0]);
        assert_eq!(turn(&gateway, "long").await.status, 200);
    });
}
