//! Agents that know nothing of the gateway: what they sent, replayed.
//!
//! `tests/agents/run` records the fixtures from the real agents.
//!
//! covers: H7

use std::collections::{HashMap, HashSet};

use futures_util::future::join_all;
use reqwest::header::HeaderValue;
use serde_json::Value;

use crate::{
    net::{Answer, Ask, CHAT, chat, run},
    support::{Config, Gateway},
};

const CLAUDE_CODE: &str = include_str!("../../../../tests/fixtures/agents/claude-code-turns.json");
const CLAUDE_CODE_DELEGATES: &str =
    include_str!("../../../../tests/fixtures/agents/claude-code-delegates.json");
const CODEX: &str = include_str!("../../../../tests/fixtures/agents/codex-turns.json");
const CODEX_DELEGATES: &str =
    include_str!("../../../../tests/fixtures/agents/codex-delegates.json");

const OPENCODE: &str = include_str!("../../../../tests/fixtures/agents/opencode-turns.json");
const OPENCODE_DELEGATES: &str =
    include_str!("../../../../tests/fixtures/agents/opencode-delegates.json");

/// The first request of each fixture of OpenCode asks for a title.
const TITLE: usize = 1;

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
        for (fixture, titles) in [(CLAUDE_CODE, 0), (CODEX, 0), (OPENCODE, TITLE)] {
            let gateway = Gateway::simulated("", &["sim-healthy"]).await;
            let answers = replay(&gateway, fixture).await;
            assert!(
                answers.iter().all(|(status, _)| *status == 200),
                "{answers:?}"
            );
            let turns = numbered(&answers[titles..]);
            assert_eq!(turns, [0, 0, 0, 1, 1, 1], "{answers:?}");
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
        for (fixture, titles) in [(CLAUDE_CODE, 0), (CODEX, 0), (OPENCODE, TITLE)] {
            let gateway = Gateway::simulated("[run]\nmax_turns = 2", &["sim-healthy"]).await;
            let answers = replay(&gateway, fixture).await;
            let statuses: Vec<_> = answers.iter().map(|(status, _)| *status).collect();
            assert_eq!(statuses[..titles], [200; TITLE][..titles]);
            assert_eq!(statuses[titles..], [200, 200, 422, 200, 200, 422]);
            let calls = gateway.simulated_calls("sim-healthy").await;
            assert_eq!(calls, 4 + titles as u64);
        }
    });
}

/// covers: C4
#[test]
fn an_abort_by_the_agents_own_session_ends_the_turn() {
    run(async {
        for (fixture, session, titles) in [
            (CLAUDE_CODE, "x-claude-code-session-id", 0),
            (CODEX, "session-id", 0),
            (OPENCODE, "x-session-affinity", TITLE),
        ] {
            let gateway = Gateway::simulated("", &["sim-healthy"]).await;
            let requests: Vec<Value> = serde_json::from_str(fixture).unwrap();
            let requests = &requests[titles..];
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
        for (fixture, runs, titles) in [
            (CLAUDE_CODE_DELEGATES, [0, 1, 1, 0].as_slice(), 0),
            (CODEX_DELEGATES, &[0, 0, 1, 1, 0], 0),
            (OPENCODE_DELEGATES, &[0, 1, 1, 0], TITLE),
        ] {
            let gateway = Gateway::simulated("", &["sim-healthy"]).await;
            let answers = replay(&gateway, fixture).await.split_off(titles);
            assert_eq!(numbered(&answers), runs, "{answers:?}");
            let first = runs.iter().position(|run| *run == 1).unwrap();
            let child = gateway.json(&format!("/runs/{}", answers[first].1)).await;
            assert_eq!(child["parent"], answers[0].1);
            let main = gateway.json(&format!("/runs/{}", answers[0].1)).await;
            // OpenCode's sub-agents have sessions of their own.
            let is_shared = child["session"] == main["session"];
            assert_eq!(is_shared, fixture != OPENCODE_DELEGATES);

            assert!(gateway.abort(&answers[0].1).await);
            let requests: Vec<Value> = serde_json::from_str(fixture).unwrap();
            let told = send(&gateway, &requests[titles + first]).await;
            assert_eq!(told.headers["x-terminal-reason"], "aborted");
        }
    });
}

/// The title of a conversation is asked for while the first turn goes on: that call is not a part
/// of the turn, and no parent of the turn's sub-agents.
#[test]
fn opencodes_call_for_a_title_is_a_run_of_its_own_in_the_session() {
    run(async {
        let gateway = Gateway::simulated("[run]\nmax_turns = 1", &["sim-healthy"]).await;
        let requests: Vec<Value> = serde_json::from_str(OPENCODE_DELEGATES).unwrap();
        // The title comes first, or the turn: OpenCode sends both at once.
        for order in [[1, 0], [0, 1]] {
            for index in order {
                let mut request = requests[index].clone();
                for name in ["x-session-affinity", "x-session-id"] {
                    request["headers"][name] = format!("ses_{}", order[0]).into();
                }
                let answer = send(&gateway, &request).await;
                assert_eq!(answer.status, 200);
                let id = answer.headers["x-run-id"].to_str().unwrap();
                assert_eq!(id.starts_with("run-"), index == 0, "{id}");
                let shown = gateway.json(&format!("/runs/{id}")).await;
                assert_eq!(shown["session"], format!("ses_{}", order[0]));
            }
            let mut sub_agent = requests[2].clone();
            let headers = &mut sub_agent["headers"];
            headers["x-parent-session-id"] = format!("ses_{}", order[0]).into();
            headers["x-session-affinity"] = format!("ses_sub_{}", order[0]).into();
            let answer = send(&gateway, &sub_agent).await;
            let id = answer.headers["x-run-id"].to_str().unwrap();
            let parent = gateway.json(&format!("/runs/{id}")).await["parent"].clone();
            let turn = format!("ses_{}:", order[0]);
            assert!(parent.as_str().unwrap().starts_with(&turn), "{parent}");
        }
    });
}

/// `x-session-id` names the session of a turn that is found all the same.
#[test]
fn a_session_that_the_caller_names_takes_the_place_of_the_agents() {
    run(async {
        let gateway = Gateway::simulated("", &["sim-healthy"]).await;
        let requests: Vec<Value> = serde_json::from_str(CLAUDE_CODE_DELEGATES).unwrap();
        let mut ids = Vec::new();
        for request in &requests {
            let mut request = request.clone();
            request["headers"]["x-session-id"] = "mine".into();
            let answer = send(&gateway, &request).await;
            ids.push((200, answer.headers["x-run-id"].to_str().unwrap().to_owned()));
        }
        assert_eq!(numbered(&ids), [0, 1, 1, 0]);
        let child = gateway.json(&format!("/runs/{}", ids[1].1)).await;
        assert_eq!(child["parent"], ids[0].1);
        assert_eq!(child["session"], "mine");
        let ended = gateway.post("/sessions/mine/abort", "").ask().await;
        assert_eq!(ended.json()["runs"], serde_json::json!([ids[0].1]));
    });
}

/// Sub-agents that begin at the same time, each with several calls in flight.
#[test]
fn concurrent_sub_agents_are_two_children() {
    run(async {
        let gateway = Gateway::simulated("", &["sim-healthy"]).await;
        let ask = async |agent: Option<&str>| {
            let mut request = gateway.post(CHAT, chat("x"));
            request = request.header("x-claude-code-session-id", "s");
            if let Some(agent) = agent {
                request = request.header("x-claude-code-agent-id", agent);
            }
            let answer = request.ask().await;
            (answer.status.as_u16(), answer.headers["x-run-id"].clone())
        };
        let (_, main) = ask(None).await;
        let calls = (0..8).map(|call| ask(Some(["a", "b"][call % 2])));
        let answers = join_all(calls).await;
        for (call, (status, id)) in answers.iter().enumerate() {
            assert_eq!((*status, id), (200, &answers[call % 2].1));
            let child = format!("/runs/{}", id.to_str().unwrap());
            let child = gateway.json(&child).await;
            assert_eq!(child["parent"], *main.to_str().unwrap());
        }
        assert_ne!(answers[0].1, answers[1].1);
        assert_eq!(
            gateway.json("/runs").await["runs"]
                .as_array()
                .unwrap()
                .len(),
            3
        );
    });
}

/// A caller can send what it likes: no value fails a call, or finds the run of another owner.
#[test]
fn odd_values_fail_no_call_and_reach_no_other_owner() {
    run(async {
        let gateway = Gateway::simulated("", &["sim-healthy"]).await;
        let ask = async |name: &'static str, value: &[u8]| {
            let value = HeaderValue::from_bytes(value).unwrap();
            let request = gateway.post(CHAT, chat("x")).header(name, value);
            let answer = request.ask().await;
            assert_eq!(answer.status, 200);
            answer.headers["x-run-id"].to_str().unwrap().to_owned()
        };
        let (long, deep) = ([b'x'; 8000], "[".repeat(8000));
        let mut runs = HashSet::new();
        for value in [b"s".as_slice(), b"a:b", b"../s", b"\xff", b"", &long] {
            assert!(runs.insert(ask("x-claude-code-session-id", value).await));
        }
        for value in [
            "{",
            "null",
            "{\"turn_id\":\"t\"}",
            "{\"session_id\":\"s\",\"turn_id\":[]}",
            "{\"session_id\":\"\\u0000\",\"turn_id\":\"\\ud800\"}",
            &deep,
        ] {
            assert!(runs.insert(ask("x-codex-turn-metadata", value.as_bytes()).await));
        }

        let owners = ["one", "two"].map(async |key| {
            let request = gateway.post(CHAT, chat("x")).bearer_auth(key);
            request.header("x-claude-code-session-id", "s").ask().await
        });
        for answer in join_all(owners).await {
            assert_eq!(answer.status, 200);
        }
        let same = gateway.json("/runs?limit=1000").await;
        let same = same["runs"].as_array().unwrap().iter();
        assert_eq!(same.filter(|run| run["session"] == "s").count(), 3);
    });
}

#[test]
fn a_callers_own_id_wins_over_its_agents_headers() {
    run(async {
        let gateway = Gateway::simulated("", &["sim-healthy"]).await;
        let requests: Vec<Value> = serde_json::from_str(CODEX).unwrap();
        let mut request = requests[0].clone();
        request["headers"]["x-run-id"] = "mine".into();
        let answer = send(&gateway, &request).await;
        assert_eq!(answer.headers["x-run-id"], "mine");
        assert!(gateway.json("/runs/mine").await["session"].is_null());
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
