//! Turns are counted where an agent cannot reach.

use reqwest::{Response, StatusCode};
use serde_json::{Value, json};

use super::support::{Gateway, eventually, run, within};

const CHAT: &str = "/v1/chat/completions";

const POLLING: &str = "sim-polling";

/// An agent of the field: it asks for the state of a job, over and over, and
/// sends along all that was said.
struct Agent {
    messages: Vec<Value>,
}

impl Agent {
    fn new() -> Self {
        let asks = json!({"role": "user", "content": "is the job done?"});
        Self {
            messages: vec![asks],
        }
    }

    fn body(&self) -> String {
        let parameters = json!({"type": "object", "properties": {"job": {"type": "string"}}});
        let function = json!({"name": "job_status", "parameters": parameters});
        let tools = [json!({"type": "function", "function": function})];
        json!({"model": POLLING, "messages": self.messages, "tools": tools}).to_string()
    }

    /// Does what the answer asks for.
    async fn obey(&mut self, answer: Response) {
        let answer = within(answer.bytes()).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        let message = &answer["choices"][0]["message"];
        let id = &message["tool_calls"][0]["id"];
        assert!(id.is_string(), "{answer}");
        let result = json!({"role": "tool", "tool_call_id": id, "content": "running"});
        self.messages.extend([message.clone(), result]);
    }
}

#[track_caller]
fn is_capped(answer: &Response) {
    assert_eq!(answer.status(), StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(answer.headers()["x-terminal-reason"], "turn_cap_reached");
    assert_eq!(answer.headers()["x-should-retry"], "false");
}

#[test]
fn a_polling_loop_of_103_calls_ends_at_its_cap() {
    run(async {
        let gateway = Gateway::simulated("[run]\nmax_turns = 30", &[POLLING]).await;
        let mut agent = Agent::new();
        for call in 1..=103 {
            let request = gateway.post(CHAT, agent.body()).header("x-run-id", "job-1");
            let answer = within(request.send()).await.unwrap();
            if call <= 30 {
                assert_eq!(answer.status(), StatusCode::OK, "call {call}");
                agent.obey(answer).await;
            } else {
                is_capped(&answer);
            }
        }
        assert_eq!(gateway.simulated_calls(POLLING).await, 30);
        let record = eventually(async || gateway.records().first().cloned()).await;
        assert_eq!(record["kind"], "harness_terminate");
        assert_eq!(record["reason"], "turn_cap_reached");
        assert_eq!(record["at_turn"], 30);
        assert_eq!(record["run"], "job-1");
        assert_eq!(gateway.records().len(), 1);
    });
}
