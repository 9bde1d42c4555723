//! Agents that know nothing of the gateway: what they sent, replayed.
//!
//! `tests/agents/run` records the fixtures from the real agents.
//!
//! covers: H7

use std::collections::HashMap;

use serde_json::Value;

use crate::{
    net::{Answer, Ask, CHAT, chat, run},
    support::{Config, Gateway},
};

const CLAUDE_CODE: &str = include_str!("../../../../tests/fixtures/agents/claude-code-turns.json");
const DELEGATES: &str =
    include_str!("../../../../tests/fixtures/agents/claude-code-delegates.json");
const CODEX: &str = include_str!("../../../../tests/fixtures/agents/codex-turns.json");

async fn send(gateway: &Gateway, request: &Value) -> Answer {
    let path = request["path"].as_str().unwrap();
    let mut sent = gateway.post(path, request["body"].to_string());
    for (name, value) in request["headers"].as_object().unwrap() {
        sent = sent.header(name, value.as_str().unwrap());
    }
    sent.ask().await
}

/// Sends all requests of a fixture; each answer has its status and its run's id.
async fn replay(gateway: &Gateway, fixture: &str) -> Vec<(u16, String)> {
    let requests: Vec<Value> = serde_json::from_str(fixture).unwrap();
    let mut answers = Vec::new();
    for request in &requests {
        let answer = send(gateway, request).await;
        let id = answer.headers["x-run-id"].to_str().unwrap().to_owned();
        answers.push((answer.status.as_u16(), id));
    }
    answers
}

/// Numbers the runs in the order of their first call.
fn numbered(answers: &[(u16, String)]) -> Vec<usize> {
    let mut known = HashMap::new();
    let number = |(_, id): &(u16, String)| {
        let next = known.len();
        *known.entry(id.clone()).or_insert(next)
    };
    answers.iter().map(number).collect()
}

#[test]
fn one_turn_of_the_user_is_one_run() {
    run(async {
        for fixture in [CLAUDE_CODE, CODEX] {
            let gateway = Gateway::simulated("", &["sim-healthy"]).await;
            let answers = replay(&gateway, fixture).await;
            assert!(
                answers.iter().all(|(status, _)| *status == 200),
                "{answers:?}"
            );
            assert_eq!(numbered(&answers), [0, 0, 0, 1, 1, 1], "{answers:?}");
            let runs = gateway.json("/runs").await;
            let runs = runs["runs"].as_array().unwrap();
            assert!(runs[0]["session"].is_string());
            assert_eq!(runs[0]["session"], runs[1]["session"]);
        }
    });
}

/// covers: D1
#[test]
fn a_cap_holds_within_a_turn_and_the_next_turn_starts_afresh() {
    run(async {
        for fixture in [CLAUDE_CODE, CODEX] {
            let gateway = Gateway::simulated("[run]\nmax_turns = 2", &["sim-healthy"]).await;
            let answers = replay(&gateway, fixture).await;
            let statuses: Vec<_> = answers.iter().map(|(status, _)| *status).collect();
            assert_eq!(statuses, [200, 200, 422, 200, 200, 422]);
            assert_eq!(gateway.simulated_calls("sim-healthy").await, 4);
        }
    });
}

/// covers: C4
#[test]
fn an_abort_by_the_agents_own_session_ends_the_turn() {
    run(async {
        for (fixture, session) in [
            (CLAUDE_CODE, "x-claude-code-session-id"),
            (CODEX, "session-id"),
        ] {
            let gateway = Gateway::simulated("", &["sim-healthy"]).await;
            let requests: Vec<Value> = serde_json::from_str(fixture).unwrap();
            assert_eq!(send(&gateway, &requests[0]).await.status, 200);
            let session = requests[0]["headers"][session].as_str().unwrap();
            let abort = format!("/sessions/{session}/abort");
            assert_eq!(gateway.post(&abort, "").ask().await.status, 200);
            let told = send(&gateway, &requests[1]).await;
            assert_eq!(told.headers["x-terminal-reason"], "aborted");
            assert_eq!(send(&gateway, &requests[3]).await.status, 200);
        }
    });
}

#[test]
fn a_sub_agents_run_is_a_child_of_its_parents() {
    run(async {
        let gateway = Gateway::simulated("", &["sim-healthy"]).await;
        let answers = replay(&gateway, DELEGATES).await;
        assert_eq!(numbered(&answers), [0, 1, 1, 0], "{answers:?}");
        let child = gateway.json(&format!("/runs/{}", answers[1].1)).await;
        assert_eq!(child["parent"], answers[0].1);

        assert!(gateway.abort(&answers[0].1).await);
        let requests: Vec<Value> = serde_json::from_str(DELEGATES).unwrap();
        let told = send(&gateway, &requests[2]).await;
        assert_eq!(told.headers["x-terminal-reason"], "aborted");
    });
}

#[test]
fn the_configuration_adds_an_agent_and_turns_the_others_off() {
    run(async {
        let own = "[known_agents]\nbuilt_in = false\n\
                   [[known_agents.headers]]\nsession = \"x-chat\"\nturn = \"x-message\"";
        let gateway = Gateway::simulated(own, &["sim-healthy"]).await;
        assert_eq!(numbered(&replay(&gateway, CODEX).await), [0, 1, 2, 3, 4, 5]);
        let ask = |message: &'static str| {
            let request = gateway.post(CHAT, chat("x")).header("x-chat", "c-1");
            request.header("x-message", message).ask()
        };
        for message in ["m-1", "m-2"] {
            let answer = ask(message).await;
            assert_eq!(answer.headers["x-run-id"], *format!("c-1:{message}"));
        }
    });
}

/// The body is read for the run, but it goes on as it came, also if its run cannot be read.
#[test]
fn a_body_that_is_read_for_its_run_stays_byte_for_byte() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        for body in [
            "{ \"model\" : \"m\",\n\"messages\":[{\"role\":\"user\",\"content\":\"200 \u{e9}\"}] }",
            "{\"model\":\"m\",\"messages\":7}",
        ] {
            let request = gateway
                .post(CHAT, body)
                .header("x-opencode-session", "ses_1");
            drop(request.ask().await);
            assert_eq!(upstream.calls().last().unwrap().body, body);
        }
    });
}
