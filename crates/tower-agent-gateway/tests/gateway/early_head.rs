//! Streams whose head is sent before the upstream has answered.
//!
//! covers: B5

use std::time::Duration;

use serde_json::json;

use crate::{
    net::{Ask, DIALECTS, Dialect, Streaming, Upstream, error_event, run, within},
    support::{Config, Gateway},
};

const EARLY: &str = "early_head = \"50ms\"\nkeep_alive = \"30ms\"\nnotify_after = \"0s\"";

async fn start(more: &str, models: &[&str]) -> (Upstream, Gateway) {
    let settings = format!("[progress]\n{EARLY}\n{more}");
    Config::new(settings).start_with_model(models).await
}

/// Asks for a stream as an SDK does, which accepts JSON, and waits for an early head and two signs
/// of life behind it.
async fn open(gateway: &Gateway, dialect: &Dialect, model: &str) -> Streaming {
    let request = gateway.post(dialect.path, dialect.asks(model, true));
    let request = request.header("accept", "application/json");
    let mut stream = request.header("x-run-id", "r-1").open().await;
    assert_eq!(stream.status, 200);
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),
        ("x-run-id", "r-1"),
    ] {
        assert_eq!(stream.headers[name], value);
    }
    assert!(!stream.headers.contains_key("x-served-model"));
    assert!(!stream.headers.contains_key("content-length"));
    for _ in 0..2 {
        stream.until(alive(dialect)).await;
    }
    stream
}

/// What keeps a silent stream of this dialect alive.
fn alive(dialect: &Dialect) -> &'static str {
    match dialect.path {
        "/v1/messages" => "event: ping\ndata: {\"type\": \"ping\"}\n\n",
        _ => ": keep-alive\n",
    }
}

#[test]
fn a_fallback_behind_an_early_head_streams() {
    run(async {
        let settings = format!("[attempt]\nfirst_token_timeout = \"500ms\"\n[progress]\n{EARLY}");
        for dialect in &DIALECTS {
            let models = ["sim-stall-head", "sim-healthy"];
            let gateway = Gateway::simulated(&settings, &models).await;
            let mut stream = open(&gateway, dialect, "sim-stall-head").await;

            let rest = within(stream.rest()).await;

            let last = rest.trim_end().rsplit("\n\n").next().unwrap();
            assert!(format!("{last}\n\n").contains(dialect.terminator), "{rest}");
            assert!(!rest.contains("event: error"), "{rest}");
            assert_eq!(gateway.simulated_calls("sim-stall-head").await, 1);
            assert_eq!(gateway.simulated_calls("sim-healthy").await, 1);
        }
    });
}

#[test]
fn a_failure_behind_an_early_head_is_an_error_event_with_the_upstreams_words() {
    run(async {
        for dialect in &DIALECTS {
            let (upstream, gateway) = start("", &["held-503"]).await;
            let mut stream = open(&gateway, dialect, "held-503").await;

            upstream.resume();
            let rest = within(stream.rest()).await;

            let (before, error) = error_event(&rest);
            assert_eq!(before.replace(alive(dialect), ""), "");
            assert_eq!(error["code"], "t");
            let message = "The upstream answered 503 Service Unavailable: 503, sorry \
                           (upstream_failed).";
            assert_eq!(error["error"]["message"], message);
            assert_eq!(error["error"]["run_id"], "r-1");
        }
    });
}

#[test]
fn a_run_that_ends_behind_an_early_head_ends_its_stream_with_the_reason() {
    run(async {
        for dialect in &DIALECTS {
            let limited = "[run]\nmax_turn_time = \"400ms\"";
            for (more, reason) in [("", "aborted"), (limited, "max_turn_time")] {
                let (upstream, gateway) = start(more, &["silent"]).await;
                let mut stream = open(&gateway, dialect, "silent").await;

                if more.is_empty() {
                    assert!(gateway.abort("r-1").await);
                }
                let rest = within(stream.rest()).await;

                let (_, error) = error_event(&rest);
                assert_eq!(error["code"], reason);
                assert_eq!(error["error"]["run_id"], "r-1");
                upstream.until_open(0).await;
                assert_eq!(gateway.reason("r-1").await, reason);
            }
        }
    });
}

#[test]
fn a_caller_that_leaves_behind_an_early_head_releases_the_upstream() {
    run(async {
        for dialect in &DIALECTS {
            let (upstream, gateway) = start("", &["silent"]).await;
            let stream = open(&gateway, dialect, "silent").await;
            upstream.until_open(1).await;

            drop(stream);

            upstream.until_open(0).await;
            let told = gateway.process.log();
            assert!(!told.contains("panicked"), "{told}");
        }
    });
}

/// Embeddings have no streams, whatever the body says.
#[test]
fn what_is_no_stream_gets_no_early_head() {
    run(async {
        let input = json!({"model": "held-503", "stream": true, "input": "x"});
        let plain = |dialect: &Dialect| (dialect.path, dialect.asks("held-503", false));
        let embeddings = ("/v1/embeddings", input.to_string());
        for (path, body) in DIALECTS.iter().map(plain).chain([embeddings]) {
            let (upstream, gateway) = start("", &["held-503"]).await;
            let call = tokio::spawn(gateway.post(path, body).ask());
            upstream.until_open(1).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            upstream.resume();
            assert_eq!(within(call).await.unwrap().status, 503, "{path}");
        }
    });
}
