//! A failover by sentinels.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::sleep;

use super::{metric, outcome, post, raise, request, simulated, turn, until_health};
use crate::{
    net::{Ask, run_alone},
    support::Sentinels,
};

/// covers: H4
#[test]
fn a_failover_fails_no_request_and_keeps_the_end_that_was_told_just_before() {
    run_alone(async {
        let Some(mut sentinels) = Sentinels::start().await else {
            return;
        };
        let settings = "[run]\nmax_turns = 100000";
        let (_simulator, config) = simulated(settings, "", &sentinels.url()).await;
        let gateways = [config.clone().start().await, config.start().await];
        let gateways = Arc::new(gateways);
        let [one, two] = &*gateways;
        let mut stream = request(one, "sim-slow", true, "stream").open().await;
        stream.until("data:").await;
        assert_eq!(turn(one, "ended").await.status, 200);

        let is_over = Arc::new(AtomicBool::new(false));
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let load = (0..4).map(|client| {
            let (gateways, longest) = (Arc::clone(&gateways), Arc::clone(&longest));
            let is_over = Arc::clone(&is_over);
            tokio::spawn(async move {
                let mut answered = 0_u32;
                while !is_over.load(Ordering::Relaxed) {
                    let since = Instant::now();
                    let gateway = &gateways[answered as usize % 2];
                    let answer = turn(gateway, &format!("load-{client}")).await;
                    assert_eq!(answer.status, 200, "{answer:?}");
                    raise(&longest, since.elapsed());
                    answered += 1;
                    sleep(Duration::from_millis(20)).await;
                }
                answered
            })
        });
        let load: Vec<_> = load.collect();
        sleep(Duration::from_secs(1)).await;
        let usual = std::mem::take(&mut *longest.lock().unwrap());

        assert_eq!(
            post(one, "/runs/ended/abort").await.json(),
            json!({"aborted": true, "replicas": 2})
        );
        sentinels.master.kill();
        let killed = Instant::now();
        for gateway in &*gateways {
            until_health(gateway, "lost").await;
        }
        // An end that is told while there is no master.
        assert_eq!(turn(two, "meanwhile").await.status, 200);
        assert_eq!(
            post(two, "/runs/meanwhile/abort").await.json(),
            json!({"aborted": true, "replicas": "lost"})
        );
        for gateway in &*gateways {
            until_health(gateway, "up").await;
        }
        let back = killed.elapsed();
        sentinels
            .second
            .until_info("replication", "role:master")
            .await;
        for gateway in [two, one] {
            for ended in ["ended", "meanwhile"] {
                let answer = turn(gateway, ended).await;
                assert_eq!(outcome(&answer), (499, Some("aborted")), "{ended}");
            }
        }
        assert_eq!(
            post(two, "/runs/stream/abort").await.json(),
            json!({"aborted": true, "replicas": 2})
        );
        assert!(stream.rest().await.contains("aborted"));

        is_over.store(true, Ordering::Relaxed);
        let answered: u32 = join_all(load).await.into_iter().map(Result::unwrap).sum();
        let slowest = *longest.lock().unwrap();
        eprintln!(
            "a master killed, and its replica promoted: {answered} requests, none failed; the slowest \
             took {usual:?} before and {slowest:?} since; both gateways had the new master {back:?} \
             after the kill"
        );
        for gateway in &*gateways {
            assert_eq!(metric(gateway, "agent_store_dropped_total").await, 0.0);
        }
    });
}
