//! What is a turn, and how many there are.
//!
//! covers: D1

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{is_capped, keyed, turn};
use crate::{
    net::{Answer, Ask, CHAT, DONE, asks, chat, client, eventually, run, within},
    support::{Config, Gateway},
};

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
    fn obey(&mut self, answer: &Answer) {
        let answer = answer.json();
        let message = &answer["choices"][0]["message"];
        let id = &message["tool_calls"][0]["id"];
        assert!(id.is_string(), "{answer}");
        let result = json!({"role": "tool", "tool_call_id": id, "content": "running"});
        self.messages.extend([message.clone(), result]);
    }
}

/// covers: D5
#[test]
fn a_polling_loop_of_103_calls_ends_at_its_cap() {
    run(async {
        let gateway = Gateway::simulated("[run]\nmax_turns = 30", &[POLLING]).await;
        let mut agent = Agent::new();
        for call in 1..=103 {
            let request = gateway.post(CHAT, agent.body()).header("x-run-id", "job-1");
            let answer = request.ask().await;
            if call <= 30 {
                assert_eq!(answer.status, StatusCode::OK, "call {call}");
                agent.obey(&answer);
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

#[test]
fn what_writes_nothing_is_no_turn() {
    run(async {
        let (upstream, gateway) =
            keyed("max_open_runs = 5\nturns_per_hour = 2\n[run]\nmax_turns = 1").await;
        let of_run = |path| {
            let request = gateway.post(path, chat("ok")).bearer_auth("sk-one");
            request.header("x-run-id", "r-1").ask()
        };
        for _ in 0..3 {
            for path in [
                "/v1/embeddings",
                "/v1/messages/count_tokens",
                "/v1/images/generations",
            ] {
                assert_eq!(of_run(path).await.status, 200, "{path}");
            }
        }
        let models = gateway.get("/v1/models").bearer_auth("sk-one");
        let models = models.header("x-run-id", "r-1");
        assert_eq!(models.ask().await.status, 200);
        assert_eq!(of_run(CHAT).await.status, 200);
        is_capped(&of_run(CHAT).await);
        // And then it is over for these, too.
        is_capped(&of_run("/v1/embeddings").await);
        assert_eq!(upstream.count(), 10);
    });
}

#[test]
fn an_agent_has_as_many_turns_as_its_key_says() {
    run(async {
        let more = "[run]\nmax_turns = 2\n[agents.one]\nmax_turns = 4";
        let (upstream, gateway) = keyed(more).await;
        for (key, turns) in [("sk-one", 4), ("sk-two", 2)] {
            for _ in 0..turns {
                assert_eq!(turn(&gateway, key, Some("r-1")).await.status, 200, "{key}");
            }
            is_capped(&turn(&gateway, key, Some("r-1")).await);
        }
        assert_eq!(upstream.count(), 6);
    });
}

/// Two thirds are at the beginning of their streams when the next is refused; the others have yet to
/// fail, to be repeated and to be moved to another model.
/// covers: D5
#[test]
fn what_a_cap_admits_at_once_is_answered_in_full_and_the_next_is_refused() {
    run(async {
        let limits = "[run]\nmax_turns = 30\n[retry]\nmax_attempts_per_candidate = 2\n\
                      base_delay = \"1ms\"";
        let (upstream, gateway) = Config::new(limits)
            .start_with_model(&["held", "held-503"])
            .await;
        let client = client();
        let asked = |model: &str| {
            let request = client.post(format!("http://{}{CHAT}", gateway.addr));
            let request = request.header("x-run-id", "r-1");
            let request = request.header("content-type", "application/json");
            request.body(asks(model, true)).ask()
        };
        let models = (0..30).map(|number| if number < 20 { "held" } else { "held-503" });
        let admitted: Vec<_> = models.map(|model| tokio::spawn(asked(model))).collect();
        upstream.until_count(30).await;

        let refused = within(asked("held")).await;

        is_capped(&refused);
        assert!(
            refused.text().contains("its limit of 30 turns"),
            "{}",
            refused.text()
        );
        let row = gateway.json("/runs/r-1").await;
        assert_eq!(
            (&row["reason"], &row["closing"]),
            (&Value::Null, &"turn_cap_reached".into())
        );
        assert_eq!((&row["turns"], gateway.records().len()), (&30.into(), 0));
        upstream.resume();
        for answer in admitted {
            let answer = within(answer).await.unwrap();
            assert_eq!(answer.status, StatusCode::OK);
            assert!(answer.text().ends_with(DONE), "{}", answer.text());
        }
        assert_eq!(upstream.count(), 20 + 10 * 3, "with repeats and fallbacks");
        let row = eventually(async || {
            let row = gateway.json("/runs/r-1").await;
            (!row["reason"].is_null()).then_some(row)
        })
        .await;
        assert_eq!(
            (&row["reason"], &row["closing"]),
            (&"turn_cap_reached".into(), &Value::Null)
        );
        is_capped(&asked("held").await);
        let record = eventually(async || gateway.records().first().cloned()).await;
        assert_eq!(
            (&record["reason"], &record["at_turn"]),
            (&"turn_cap_reached".into(), &30.into())
        );
        assert_eq!((gateway.records().len(), upstream.count()), (1, 50));
    });
}

#[test]
fn requests_that_come_at_once_are_counted_one_by_one() {
    run(async {
        let (upstream, gateway) = keyed("[run]\nmax_turns = 10").await;
        let client = client();
        let calls: Vec<_> = (0..50)
            .map(|_| {
                let request = client.post(format!("http://{}{CHAT}", gateway.addr));
                let request = request.bearer_auth("sk-one").header("x-run-id", "r-1");
                let request = request.header("content-type", "application/json");
                tokio::spawn(request.body(chat("held")).ask())
            })
            .collect();
        upstream.until_count(10).await;
        eventually(async || {
            let refused = calls.iter().filter(|call| call.is_finished()).count();
            (refused == 40).then_some(())
        })
        .await;
        upstream.resume();
        let mut served = 0;
        for call in calls {
            let answer = within(call).await.unwrap();
            match answer.status {
                StatusCode::OK => served += 1,
                _ => is_capped(&answer),
            }
        }
        assert_eq!((served, upstream.count()), (10, 10));
        let record = eventually(async || gateway.records().first().cloned()).await;
        assert_eq!(record["at_turn"], 10);
        assert_eq!(gateway.records().len(), 1);
        let run = gateway.json("/runs/r-1").await;
        assert_eq!(run["turns"], 10);
    });
}
