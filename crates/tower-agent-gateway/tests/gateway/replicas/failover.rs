//! A failover by sentinels.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::time::sleep;

use super::{Load, metric, outcome, post, request, simulated, turn, until_health};
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

        let load = Load::start(&gateways);
        sleep(Duration::from_secs(1)).await;
        let usual = load.take_longest();

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

        let slowest = load.take_longest();
        let answered = load.stop().await;
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
