//! Runs that go in circles.
//!
//! covers: D7

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::{
    net::{Answer, Ask, CHAT, eventually, run},
    support::{Config, Gateway},
};

/// A request after this many calls of one tool with one result.
fn polled(times: usize) -> String {
    let mut messages = vec![json!({"role": "user", "content": "is the job done?"})];
    for number in 0..times {
        let function = json!({"name": "job_status", "arguments": "{\"job\":7}"});
        let call = json!({"id": format!("c{number}"), "type": "function", "function": function});
        messages.push(json!({"role": "assistant", "tool_calls": [call]}));
        let result = json!({"role": "tool", "tool_call_id": format!("c{number}"), "content": "no"});
        messages.push(result);
    }
    let tool = json!({"type": "function", "function": {"name": "job_status"}});
    json!({"model": "m", "messages": messages, "tools": [tool]}).to_string()
}

pub(crate) async fn asks(gateway: &Gateway, times: usize) -> Answer {
    turn(gateway, times).ask().await
}

/// The same turn, not sent yet.
pub(crate) fn turn(gateway: &Gateway, times: usize) -> reqwest::RequestBuilder {
    gateway.post(CHAT, polled(times)).header("x-run-id", "r-1")
}

#[test]
fn a_loop_ends_its_run_and_is_written_down() {
    run(async {
        let (upstream, gateway) = Config::new("[loops]\nstop = 4")
            .start_with_model(&["m"])
            .await;
        for times in 0..4 {
            assert_eq!(asks(&gateway, times).await.status, 200, "{times}");
        }
        let looped = asks(&gateway, 4).await;
        assert_eq!(looped.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(looped.headers["x-terminal-reason"], "loop_detected");
        assert_eq!(upstream.count(), 4);
        let record = eventually(async || gateway.records().first().cloned()).await;
        assert_eq!(record["reason"], "loop_detected");
    });
}

#[test]
fn a_loop_that_is_only_observed_is_told() {
    run(async {
        let (_upstream, gateway) = Config::new("[loops]\nstop = 2\nobserve = true")
            .start_with_model(&["m"])
            .await;
        let mut events = gateway.get("/events").open().await;
        for times in 0..5 {
            assert_eq!(asks(&gateway, times).await.status, 200, "{times}");
        }
        assert_eq!(gateway.json("/runs/r-1").await["reason"], Value::Null);
        events.until("\"kind\":\"loop\"").await;
    });
}

#[test]
fn without_the_table_nobody_looks() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        assert_eq!(asks(&gateway, 50).await.status, 200);
        assert_eq!(asks(&gateway, 51).await.status, 200);
    });
}
