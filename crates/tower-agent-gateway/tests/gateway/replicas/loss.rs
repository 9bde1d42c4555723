//! The store is away, or freezes.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Cluster, Load, metric, of, outcome, post, raise, request, turn, until_health};
use crate::{
    net::{Ask, CHAT, asks, run, run_alone},
    support::Gateway,
};

/// covers: H4
#[test]
fn a_store_that_freezes_holds_up_nothing_and_hears_later_what_was_told() {
    run_alone(async {
        let settings = "[run]\nmax_turns = 100000";
        let Some(cluster) = Cluster::start(settings, "").await else {
            return;
        };
        let gateways: [Gateway; 2] = cluster.gateways().await;
        let gateways = Arc::new(gateways);
        let [one, two] = &*gateways;
        let mut stream = request(one, "sim-slow", true, "aborted").open().await;
        stream.until("data:").await;

        let load = Load::start(&gateways);
        // How late this machine wakes a task that sleeps as long as a request waits.
        let late = Arc::new(Mutex::new(Duration::ZERO));
        let noted = Arc::clone(&late);
        let noise = tokio::spawn(async move {
            loop {
                let since = Instant::now();
                sleep(Duration::from_millis(50)).await;
                let by = since.elapsed().saturating_sub(Duration::from_millis(50));
                raise(&noted, by);
            }
        });
        sleep(Duration::from_secs(2)).await;
        let usual = load.take_longest();

        cluster.store.signal("STOP");
        let stopped = Instant::now();
        for gateway in &*gateways {
            until_health(gateway, "lost").await;
            assert_eq!(metric(gateway, "agent_store_up").await, 0.0);
        }
        let noticed = stopped.elapsed();
        let answer = post(two, "/runs/aborted/abort").await;
        let told = json!({"aborted": true, "replicas": "lost"});
        assert_eq!((answer.status.as_u16(), answer.json()), (200, told));
        let freeze = Duration::from_secs(of(3, 10) as u64);
        sleep(freeze.saturating_sub(stopped.elapsed())).await;
        assert_eq!(one.reason("aborted").await, Value::Null);
        assert!(metric(one, "agent_store_lag_seconds").await > 1.0);
        let frozen = load.take_longest();

        cluster.store.signal("CONT");
        let since = Instant::now();
        for gateway in &*gateways {
            until_health(gateway, "up").await;
            assert_eq!(metric(gateway, "agent_store_up").await, 1.0);
            assert_eq!(metric(gateway, "agent_store_dropped_total").await, 0.0);
        }
        let back = since.elapsed();
        assert!(stream.rest().await.contains("aborted"));
        for gateway in &*gateways {
            assert_eq!(
                outcome(&turn(gateway, "aborted").await),
                (499, Some("aborted"))
            );
        }
        let answered = load.stop().await;
        noise.abort();
        let late = *late.lock().unwrap();
        eprintln!(
            "a freeze of {freeze:?}: {answered} requests, none failed; the slowest took {usual:?} \
             before and {frozen:?} during it, on a machine that wakes up to {late:?} late; \
             noticed after {noticed:?}, back after {back:?}"
        );
        assert!(frozen < usual + late + Duration::from_millis(60));
        for gateway in &*gateways {
            let waits = metric(gateway, "agent_store_wait_seconds_count").await;
            let short = "agent_store_wait_seconds_bucket{le=\"0.1\"}";
            let is_short = metric(gateway, short).await == waits;
            assert!(is_short || late > Duration::from_millis(40), "{waits}");
        }
    });
}

/// covers: H4
#[test]
fn a_gateway_may_refuse_new_runs_under_a_cap_while_the_store_is_lost() {
    run(async {
        let settings = "[run]\nmax_turns = 30";
        let Some(cluster) = Cluster::start(settings, "on_loss = \"refuse\"").await else {
            return;
        };
        let gateway = cluster.gateway().await;
        assert_eq!(turn(&gateway, "known").await.status, 200);
        cluster.store.signal("STOP");
        until_health(&gateway, "lost").await;

        let refused = turn(&gateway, "new").await;
        assert_eq!(outcome(&refused), (503, Some("peers_lost")));
        assert_eq!(refused.json()["error"]["type"], "peers_lost");
        assert_eq!(turn(&gateway, "known").await.status, 200);
        let unnamed = gateway.post(CHAT, asks("sim-healthy", false)).ask().await;
        assert_eq!(unnamed.status, 200);

        cluster.store.signal("CONT");
        until_health(&gateway, "up").await;
        assert_eq!(turn(&gateway, "new").await.status, 200);
    });
}

/// covers: H4
#[test]
fn a_gateway_starts_and_serves_while_its_store_is_away() {
    run(async {
        let Some(cluster) = Cluster::start("[run]\nmax_turns = 2", "").await else {
            return;
        };
        let config = cluster.config.clone();
        let alone = config.env("STORE_URL", "redis://127.0.0.1:9").start().await;
        until_health(&alone, "lost").await;
        assert_eq!(turn(&alone, "r").await.status, 200);
        assert_eq!(metric(&alone, "agent_store_up").await, 0.0);
    });
}
