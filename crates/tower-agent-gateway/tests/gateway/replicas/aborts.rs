//! An abort at one gateway ends the run at another.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::RequestBuilder;
use serde_json::json;

use super::{Cluster, PATIENT, of, outcome, post, request, turn};
use crate::net::{Ask, CHAT, asks, eventually, run, run_alone};

/// covers: H4, C6
#[test]
fn an_abort_at_another_gateway_ends_the_run_and_frees_its_upstream() {
    run_alone(async {
        let Some(cluster) = Cluster::start("", PATIENT).await else {
            return;
        };
        let [one, two] = cluster.gateways().await;
        let count = of(50, 200);
        let ids: Vec<_> = (0..count).map(|call| format!("r-{call}")).collect();
        let streams = ids.iter().map(async |id| {
            let mut stream = request(&one, "sim-slow", true, id).open().await;
            stream.until("data:").await;
            stream
        });
        let streams = join_all(streams).await;
        let mut took = Vec::new();
        for (id, mut stream) in ids.iter().zip(streams) {
            let since = Instant::now();
            assert!(two.abort(id).await);
            let rest = stream.rest().await;
            took.push(since.elapsed());
            assert!(rest.contains("aborted"), "{rest}");
        }
        let since = Instant::now();
        let simulator = &cluster.simulator;
        let is_free =
            async || (simulator.simulated_count("sim-slow", "open").await == 0).then_some(());
        eventually(is_free).await;
        let freed = since.elapsed();
        let released = simulator.simulated_count("sim-slow", "released").await;
        assert_eq!(released, count as u64);
        // Refused with the same reason where it was, and where it never was.
        for id in ids.iter().take(5) {
            for gateway in [&one, &two] {
                assert_eq!(outcome(&turn(gateway, id).await), (499, Some("aborted")));
            }
        }
        assert_eq!(simulator.simulated_calls("sim-healthy").await, 0);
        took.sort();
        let [p50, p99] = [took.len() / 2, took.len() * 99 / 100].map(|at| took[at]);
        let longest = took[took.len() - 1];
        eprintln!(
            "{count} aborts over two gateways: p50 {p50:?}, p99 {p99:?}, longest {longest:?}; \
             the upstream is free {freed:?} after the last"
        );
        assert!(p50 < Duration::from_millis(250), "{took:?}");
    });
}

/// covers: H4, C6
#[test]
fn an_abort_reaches_runs_whose_owner_or_id_another_gateway_knows() {
    run(async {
        let keys = "[auth]\nkeys_env = \"TEST_KEYS\"";
        let Some(mut cluster) = Cluster::start(keys, PATIENT).await else {
            return;
        };
        cluster.config = cluster.config.env("TEST_KEYS", "one:sk-one,two:sk-two");
        let [one, two] = cluster.gateways().await;
        let open = async |key: &str, headers: &[(&str, &str)]| {
            let request = one.post(CHAT, asks("sim-slow", true)).bearer_auth(key);
            let with = |request: RequestBuilder, (name, value): &(&str, &str)| {
                request.header(*name, *value)
            };
            let request = headers.iter().fold(request, with);
            let mut stream = request.open().await;
            stream.until("data:").await;
            stream
        };
        let own = async |path: String| {
            let request = two.post(&path, "").bearer_auth("sk-one");
            let answer = request.ask().await;
            assert_eq!(answer.status, 200);
            answer.json()
        };

        // By its owner, and not by another one.
        let mut stream = open("sk-one", &[("x-run-id", "own")]).await;
        let mut others = open("sk-two", &[("x-run-id", "own")]).await;
        assert_eq!(
            own("/v1/runs/own/abort".into()).await,
            json!({"aborted": true, "replicas": 2})
        );
        assert!(stream.rest().await.contains("aborted"));
        // By the operator, whoever has it.
        assert!(two.abort("own").await);
        assert!(others.rest().await.contains("aborted"));

        // A run whose id the gateway has made.
        let mut stream = open("sk-one", &[]).await;
        let id = stream.headers["x-run-id"].to_str().unwrap().to_owned();
        assert_eq!(
            own(format!("/v1/runs/{id}/abort")).await,
            json!({"aborted": true, "replicas": 2})
        );
        assert!(stream.rest().await.contains("aborted"));

        // Sessions, by their owner and by the operator.
        let named = [("x-run-id", "first"), ("x-session-id", "s")];
        let mut stream = open("sk-one", &named).await;
        assert_eq!(
            own("/v1/sessions/s/abort".into()).await,
            json!({"runs": [], "replicas": 2})
        );
        assert!(stream.rest().await.contains("aborted"));
        let mut stream = open("sk-two", &[("x-run-id", "second"), ("x-session-id", "t")]).await;
        let answer = post(&two, "/sessions/t/abort").await;
        assert_eq!(
            (answer.status.as_u16(), answer.json()),
            (200, json!({"runs": [], "replicas": 2}))
        );
        assert!(stream.rest().await.contains("aborted"));
    });
}
