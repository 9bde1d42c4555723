//! Clients that leave a gateway that reads on, to learn what they cost.
//!
//! covers: C2, T10

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::{
    net::{Ask, CHAT, Upstream, asks, eventually, run},
    support::{Config, Gateway},
};

async fn start(limit: &str, models: &[&str]) -> (Upstream, Gateway) {
    let drain = format!("[disconnect]\npolicy = \"drain\"\ndrain_limit = \"{limit}\"\n[retry]");
    let (upstream, gateway) = Config::new(drain).start_with_model(models).await;
    (upstream, gateway)
}

/// A client that leaves after the first token: when.
async fn leaves_mid_stream(gateway: &Gateway, model: &str) -> Instant {
    let mut stream = gateway.post(CHAT, asks(model, true)).open().await;
    stream.until("data:").await;
    Instant::now()
}

/// The only run, once it looks like this.
async fn only(gateway: &Gateway, like: impl Fn(&Value) -> bool) -> Value {
    eventually(async || {
        let runs = gateway.json("/runs").await;
        Some(runs["runs"][0].clone()).filter(&like)
    })
    .await
}

/// The call is gone, and its attempts work on.
fn drains(run: &Value) -> bool {
    run["reason"].is_null() && run["in_flight"] == 2
}

fn is_over(run: &Value) -> bool {
    !run["reason"].is_null() && run["in_flight"] == 0
}

/// The lines that tell what calls came to.
fn ended(gateway: &Gateway) -> Vec<String> {
    let log = gateway.log();
    let lines = log.lines().filter(|line| line.contains("call ended"));
    lines.map(str::to_owned).collect()
}

/// covers: H5
#[test]
fn a_stream_is_read_to_its_end_and_what_it_cost_is_told_once() {
    run(async {
        let (upstream, gateway) = start("10m", &["held", "ok"]).await;
        leaves_mid_stream(&gateway, "held").await;
        only(&gateway, drains).await;
        upstream.resume();
        let run = only(&gateway, is_over).await;

        assert_eq!(run["reason"], "client_disconnect");
        assert_eq!(run["usage"], json!({"input_tokens": 7, "output_tokens": 2}));
        assert_eq!(upstream.models(), ["held"]);
        let told = eventually(async || Some(ended(&gateway)).filter(|it| !it.is_empty())).await;
        assert_eq!(told.len(), 1);
        let parts = [
            "client_disconnect",
            "candidate=\"held\"",
            "input_tokens=7",
            "output_tokens=2",
        ];
        for part in parts {
            assert!(told[0].contains(part), "{part}: {}", told[0]);
        }
    });
}

#[test]
fn an_attempt_that_fails_while_it_drains_is_the_last() {
    run(async {
        let (upstream, gateway) = start("10m", &["held-503", "ok"]).await;
        let call = tokio::spawn(gateway.post(CHAT, asks("held-503", true)).ask());
        upstream.until_open(1).await;
        call.abort();
        only(&gateway, drains).await;
        upstream.resume();
        let run = only(&gateway, is_over).await;

        assert_eq!(run["reason"], "client_disconnect");
        // Of one that was repeated or moved the call would be longer than its run.
        eventually(async || (ended(&gateway).len() == 1).then_some(())).await;
        assert_eq!(upstream.models(), ["held-503"]);
    });
}

#[test]
fn at_the_limit_the_upstream_is_released() {
    run(async {
        let (upstream, gateway) = start("600ms", &["stall", "ok"]).await;
        let left = leaves_mid_stream(&gateway, "stall").await;
        upstream.until_open(0).await;
        assert!(left.elapsed() >= Duration::from_millis(600), "not drained");

        let run = only(&gateway, is_over).await;
        assert_eq!(run["reason"], "client_disconnect");
        assert_eq!(upstream.models(), ["stall"]);
    });
}

#[test]
fn an_operator_ends_a_drain() {
    run(async {
        let (upstream, gateway) = start("10m", &["stall"]).await;
        leaves_mid_stream(&gateway, "stall").await;
        let run = only(&gateway, drains).await;

        assert!(gateway.abort(run["run"].as_str().unwrap()).await);

        upstream.until_open(0).await;
        assert_eq!(only(&gateway, is_over).await["reason"], "aborted");
    });
}

#[test]
fn a_client_that_leaves_in_a_backoff_is_not_waited_for() {
    run(async {
        let (upstream, gateway) = start("10m", &["429-later"]).await;
        let call = tokio::spawn(gateway.post(CHAT, asks("429-later", true)).ask());
        eventually(async || (upstream.count() == 1 && upstream.open() == 0).then_some(())).await;
        call.abort();

        assert_eq!(only(&gateway, is_over).await["reason"], "client_disconnect");
        assert_eq!(upstream.models(), ["429-later"]);
    });
}
