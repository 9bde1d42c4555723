//! The upstream that the gateway brings along: what its models show.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use crate::{
    net::{Ask, DIALECTS, run},
    support::Gateway,
};

/// What may fail, how often it is asked, and the least that takes.
const FAILING: [(&str, u64, Duration); 5] = [
    ("sim-failing", 2, Duration::ZERO),
    ("sim-overloaded", 1, Duration::ZERO),
    ("sim-overloaded-stream", 1, Duration::ZERO),
    ("sim-rate-limited", 1, Duration::ZERO),
    ("sim-rate-limited-long", 1, Duration::ZERO),
];

/// As the greeting says.
#[test]
fn the_healthy_model_serves_for_those_that_fail() {
    run(async {
        let gateway = Gateway::embedded().await;
        let mut served = 0;
        for (model, calls, least) in FAILING {
            let mut asked = 0;
            for dialect in &DIALECTS {
                for stream in [false, true] {
                    let begun = Instant::now();
                    let request = gateway.post(dialect.path, dialect.asks(model, stream));
                    let answer = request.ask().await;
                    assert!(begun.elapsed() >= least, "{model}");
                    assert_eq!(answer.status, 200, "{model}");
                    assert_eq!(answer.headers["x-served-model"], "sim-healthy");
                    let text = answer.text();
                    assert!(!text.contains("error\":{"), "{text}");
                    asked += calls;
                    served += 1;
                    assert_eq!(gateway.simulated_calls(model).await, asked, "{model}");
                    assert_eq!(gateway.simulated_calls("sim-healthy").await, served);
                }
            }
        }
    });
}

#[test]
fn a_model_without_a_head_is_stood_in_for_after_its_window() {
    run(async {
        let gateway = Gateway::embedded().await;
        let dialect = &DIALECTS[0];
        let begun = Instant::now();
        let request = gateway.post(dialect.path, dialect.asks("sim-stall-head", false));
        let answer = request.ask().await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["x-served-model"], "sim-healthy");
        assert!(begun.elapsed() >= Duration::from_secs(5));
        assert_eq!(gateway.simulated_calls("sim-stall-head").await, 1);
        assert_eq!(gateway.simulated_calls("sim-healthy").await, 1);
    });
}

#[test]
fn a_run_meets_its_cap_at_turn_21() {
    run(async {
        let gateway = Gateway::embedded().await;
        let dialect = &DIALECTS[0];
        for turn in 1..=21 {
            let request = gateway.post(dialect.path, dialect.asks("sim-healthy", false));
            let answer = request.header("x-run-id", "endless").ask().await;
            let status = if turn <= 20 { 200 } else { 422 };
            assert_eq!(answer.status, status, "{turn}");
            let reason = answer.headers.get("x-terminal-reason");
            assert_eq!(reason.is_some_and(|it| it == "turn_cap_reached"), turn > 20);
        }
        assert_eq!(gateway.simulated_calls("sim-healthy").await, 20);
    });
}

#[test]
fn an_agent_that_polls_is_ended_at_the_tenth_same_result() {
    run(async {
        let gateway = Gateway::embedded().await;
        let mut messages = vec![json!({"role": "user", "content": "is it done?"})];
        for turn in 1..=11 {
            let asks = json!({
                "model": "sim-polling",
                "tools": [{"type": "function", "function": {"name": "status"}}],
                "messages": messages,
            });
            let request = gateway.post("/v1/chat/completions", asks.to_string());
            let answer = request.header("x-run-id", "polling").ask().await;
            let status = if turn <= 10 { 200 } else { 422 };
            assert_eq!(answer.status, status, "{turn}");
            let reason = answer.headers.get("x-terminal-reason");
            assert_eq!(reason.is_some_and(|it| it == "loop_detected"), turn > 10);
            let id = format!("c{turn}");
            let function = json!({"name": "status", "arguments": "{}"});
            let call = json!({"id": id, "type": "function", "function": function});
            messages.push(json!({"role": "assistant", "tool_calls": [call]}));
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": "not yet"}));
        }
        assert_eq!(gateway.simulated_calls("sim-polling").await, 10);
    });
}

#[test]
fn a_refusal_is_the_callers_and_goes_nowhere_else() {
    run(async {
        let gateway = Gateway::embedded().await;
        for (calls, dialect) in (1..).zip(&DIALECTS) {
            let request = gateway.post(dialect.path, dialect.asks("sim-refusing", true));
            let answer = request.ask().await;
            assert_eq!(answer.status, 400);
            let body = answer.text();
            assert!(body.contains("invalid_request_error"), "{body}");
            assert_eq!(gateway.simulated_calls("sim-refusing").await, calls);
            assert_eq!(gateway.simulated_calls("sim-healthy").await, 0);
        }
    });
}

#[test]
fn what_is_no_conversation_is_moved_on_as_well() {
    run(async {
        let gateway = Gateway::embedded().await;
        for path in ["/v1/messages/count_tokens", "/v1/embeddings"] {
            let body = "{\"model\":\"sim-failing\",\"input\":\"hi\",\"messages\":[]}";
            let answer = gateway.post(path, body).ask().await;
            assert_eq!(answer.status, 200, "{path}");
            assert_eq!(answer.headers["x-served-model"], "sim-healthy");
        }
        assert_eq!(gateway.simulated_calls("sim-failing").await, 4);
        assert_eq!(gateway.simulated_calls("sim-healthy").await, 2);
    });
}

/// It says itself what it was sent.
#[test]
fn a_large_body_arrives_whole_at_the_model_that_is_tried_next() {
    run(async {
        let gateway = Gateway::simulated("", &["sim-failing", "sim-large"]).await;
        let dialect = &DIALECTS[0];
        let long = "0123456789".repeat(500_000);
        let asks = dialect.asks("sim-failing", false);
        let body = asks.replace("\"hi\"", &format!("\"{long}\""));
        let answer = gateway.post(dialect.path, body.clone()).ask().await;
        let text = answer.text();
        let sent = body.replace("sim-failing", "sim-large");
        let sum = sent.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
            (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let wanted = format!("{} bytes, fnv1a {sum:016x}", sent.len());
        assert!(text.contains(&wanted), "{wanted} is not in {text}");
        assert_eq!(gateway.simulated_calls("sim-failing").await, 1);
        assert_eq!(gateway.simulated_calls("sim-large").await, 1);
    });
}
