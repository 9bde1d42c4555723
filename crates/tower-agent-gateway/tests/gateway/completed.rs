//! Runs that are done: reported as completed, whatever their limits on time.
//!
//! covers: H16

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    net::{Answer, Ask, CHAT, chat, error_event, eventually, run},
    support::{Config, Gateway},
};

async fn turn(gateway: &Gateway) -> Answer {
    let request = gateway.post(CHAT, chat("ok"));
    request.header("x-run-id", "r-1").ask().await
}

/// The reason of the run, once it has one.
async fn ended(gateway: &Gateway) -> Value {
    eventually(async || {
        let reason = gateway.reason("r-1").await;
        (!reason.is_null()).then_some(reason)
    })
    .await
}

#[test]
fn a_run_that_is_done_before_its_ceiling_leaves_no_trace_of_a_limit() {
    run(async {
        for limits in [
            "idle = \"1s\"\nmax_turn_time = \"1s\"",
            "idle = \"1s\"\ntimeout = \"1s\"",
            // Half of it.
            "max_turn_time = \"2s\"",
        ] {
            let settings = format!("[run]\n{limits}");
            let (upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
            for _ in 0..2 {
                assert_eq!(turn(&gateway).await.status, 200);
            }

            assert_eq!(ended(&gateway).await, "completed", "{limits}");
            let metrics = gateway.get("/metrics").ask().await;
            let ends: Vec<_> = metrics
                .text()
                .lines()
                .filter(|line| line.starts_with("agent_runs_ended_total{"))
                .collect();
            assert_eq!(
                ends,
                ["agent_runs_ended_total{reason=\"completed\"} 1"],
                "{limits}"
            );
            assert!(gateway.records().is_empty(), "{limits}");
            assert!(!gateway.log().contains("max_turn_time"), "{limits}");

            assert_eq!(turn(&gateway).await.status, 200, "a new run");
            assert_eq!(upstream.count(), 3);
        }
    });
}

#[test]
fn an_agent_that_comes_back_behind_the_ceiling_hears_it_and_its_time() {
    run(async {
        let settings = "[run]\nidle = \"20s\"\nmax_turn_time = \"1s\"";
        let (upstream, gateway) = Config::new(settings).start_with_model(&["m"]).await;
        assert_eq!(turn(&gateway).await.status, 200);
        // The agent's own tool.
        sleep(Duration::from_millis(1500)).await;
        assert_eq!(
            gateway.reason("r-1").await,
            Value::Null,
            "nothing was in flight"
        );

        let answer = turn(&gateway).await;

        assert_eq!(
            (answer.status.as_u16(), answer.reason()),
            (504, Some("max_turn_time"))
        );
        assert!(answer.text().contains("after 1s"), "{}", answer.text());
        assert_eq!(gateway.json("/runs/r-1").await["elapsed_ms"], 1000);
        assert_eq!(gateway.records().len(), 1);
        assert_eq!(upstream.count(), 1);
    });
}

#[test]
fn the_operator_completes_a_run() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let complete = async || {
            let request = gateway.request(Method::POST, "/runs/r-1/complete");
            let answer = request.ask().await;
            (answer.status.as_u16(), answer.text().to_owned())
        };
        assert_eq!(complete().await.0, 404);
        let stream = gateway.post(CHAT, chat("stall")).header("x-run-id", "r-1");
        let mut stream = stream.open().await;

        let (status, answer) = complete().await;
        assert_eq!(status, 202);
        assert!(
            answer.starts_with(r#"{"completed":false,"in_flight":"#),
            "{answer}"
        );
        // The first call still runs; this one is served, too.
        assert_eq!(turn(&gateway).await.status, 200);
        assert_eq!(gateway.reason("r-1").await, Value::Null);
        assert!(gateway.abort("r-1").await);
        assert_eq!(error_event(&stream.rest().await).1["code"], "aborted");
        let (status, answer) = complete().await;
        let over = r#"{"completed":false,"reason":"aborted"}"#;
        assert_eq!((status, answer.as_str()), (200, over));
    });
}

#[test]
fn a_caller_completes_its_own_run_and_the_next_request_opens_another() {
    run(async {
        let auth = "[auth]\nkeys_env = \"TEST_KEYS\"";
        let config = Config::new(auth).env("TEST_KEYS", "one:sk-one,two:sk-two");
        let (_upstream, gateway) = config.start_with_model(&["m"]).await;
        let ask = async |method: Method, path: &str, key: &str| {
            let request = gateway.request(method, path).bearer_auth(key);
            request.ask().await
        };
        let turn = async || {
            let request = gateway.post(CHAT, chat("ok")).bearer_auth("sk-one");
            request.header("x-run-id", "r-1").ask().await.status
        };
        assert_eq!(turn().await, 200);

        let path = "/v1/runs/r-1/complete";
        let other = ask(Method::POST, path, "sk-two").await;
        assert_eq!(other.status, 404, "another owner's");
        for _ in 0..2 {
            let answer = ask(Method::POST, path, "sk-one").await;
            assert_eq!(
                (answer.status.as_u16(), answer.json()),
                (200, json!({ "completed": true }))
            );
        }

        let shown = ask(Method::GET, "/v1/runs/r-1", "sk-one").await;
        assert_eq!(shown.json()["reason"], "completed");
        assert_eq!(turn().await, 200);
        let shown = ask(Method::GET, "/v1/runs/r-1", "sk-one").await;
        assert_eq!(shown.json()["generation"], 2);
        assert!(gateway.records().is_empty());
    });
}

#[test]
fn check_warns_of_an_idle_limit_that_is_not_shorter_than_the_ceiling() {
    run(async {
        for (limits, place) in [
            (
                "[run]\nidle = \"5m\"\nmax_turn_time = \"5m\"",
                Some("2:8: run.idle: "),
            ),
            (
                "[run]\nidle = \"5m\"\ntimeout = \"4m\"",
                Some("2:8: run.idle: "),
            ),
            ("[run]\nidle = \"4m\"\nmax_turn_time = \"5m\"", None),
            ("[run]\nmax_turn_time = \"5m\"", None),
            ("[run]\nidle = \"0s\"\nmax_turn_time = \"5m\"", None),
        ] {
            let candidate = "[[candidates]]\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:9/v1\"";
            let file = Config::new(format!("{limits}\n{candidate}")).write();
            let (status, [_, told]) = Gateway::printed(&["--check", file.path()], &[]).await;
            assert_eq!(status, Some(0), "{told}");
            let expected = place.map(|place| format!("warning: {}:{place}", file.path()));
            match expected {
                Some(expected) => assert!(told.contains(&expected), "{limits}: {told}"),
                None => assert_eq!(told, "", "{limits}"),
            }
        }
    });
}
