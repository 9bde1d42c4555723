//! Sub-agents whose parent's run has ended: none is served, and each is told why.
//!
//! covers: H17, C9

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;

use crate::{
    net::{Answer, Ask, run},
    support::Gateway,
};

const AGENTS: usize = 48;

/// How the agents call, and how their sub-agents hang together.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// All are children of the main agent.
    FanOut,
    /// Each is the child of the one before.
    Chain,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Agent {
    ClaudeCode,
    Codex,
}

/// How the main agent's run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Abort,
    AbortSession,
    TurnCap,
    TokenCap,
    Ceiling,
}

const ENDS: [(End, &str, &str); 5] = [
    (End::Abort, "", "aborted"),
    (End::AbortSession, "", "aborted"),
    (End::TurnCap, "max_turns = 1", "turn_cap_reached"),
    (
        End::TokenCap,
        "max_output_tokens = 200",
        "token_cap_reached",
    ),
    (End::Ceiling, "max_turn_time = \"1s\"", "max_turn_time"),
];

/// The candidate that answers, and the one that is silent behind the first deltas.
const MODELS: [&str; 2] = ["sim-healthy", "sim-stall-stream"];

impl Agent {
    /// Asks as the main agent does, or as the sub-agent of this number.
    async fn ask(
        self,
        gateway: &Gateway,
        shape: Shape,
        number: Option<usize>,
        model: &str,
    ) -> Answer {
        let parent = number.filter(|number| shape == Shape::Chain && *number > 0);
        let parent = parent.map(|number| number - 1);
        let streams = model == MODELS[1];
        let request = match self {
            Self::ClaudeCode => {
                let says = json!([{"role": "user", "content": "go on"}]);
                let body = json!({
                    "model": model, "max_tokens": 9, "stream": streams, "messages": says,
                });
                let mut request = gateway.post("/v1/messages", body.to_string());
                request = request.header("x-claude-code-session-id", "s-1");
                if let Some(number) = number {
                    request = request.header("x-claude-code-agent-id", format!("agent-{number}"));
                }
                if let Some(parent) = parent {
                    let parent = format!("agent-{parent}");
                    request = request.header("x-claude-code-parent-agent-id", parent);
                }
                request
            }
            Self::Codex => {
                let turn = |number: Option<usize>| match number {
                    None => "turn-main".to_owned(),
                    Some(number) => format!("turn-{number}"),
                };
                let metadata = json!({
                    "session_id": "s-1", "turn_id": turn(number), "root_turn_id": turn(None),
                    "parent_turn_id": turn(parent),
                });
                let body = json!({"model": model, "stream": streams, "input": "go on"});
                let request = gateway.post("/v1/responses", body.to_string());
                request.header("x-codex-turn-metadata", metadata.to_string())
            }
        };
        request.ask().await
    }
}

async fn is_told(how: End, caps: &str, reason: &str, agent: Agent, shape: Shape) {
    let case = format!("{how:?} {agent:?} {shape:?}");
    let gateway = Gateway::simulated(&format!("[run]\n{caps}"), &MODELS).await;
    let ask = async |number, model| agent.ask(&gateway, shape, number, model).await;
    let main = ask(None, MODELS[0]).await;
    assert_eq!(main.status, 200, "{case}");
    // Two work already.
    for number in [0, 1] {
        let answer = ask(Some(number), MODELS[0]).await;
        assert_eq!(answer.status, 200, "{case}: {}", answer.text());
    }
    let id = main.headers["x-run-id"].to_str().unwrap();
    match how {
        End::Abort => assert!(gateway.abort(id).await, "{case}"),
        End::AbortSession => {
            let answer = gateway.post("/sessions/s-1/abort", "").ask().await;
            assert_ne!(answer.json()["runs"], json!([]), "{case}");
        }
        End::TurnCap | End::TokenCap => while ask(None, MODELS[0]).await.status == 200 {},
        // A call is in flight at the ceiling.
        End::Ceiling => drop(ask(None, MODELS[1]).await),
    }
    assert_eq!(gateway.reason(id).await, reason, "{case}");
    let served = gateway.simulated_calls(MODELS[0]).await;

    let (first, rest) = (0..AGENTS / 2, AGENTS / 2..AGENTS);
    for number in first {
        let answer = ask(Some(number), MODELS[0]).await;
        assert_eq!(answer.reason(), Some(reason), "{case} {number}");
    }
    // And all at once, the last of a chain before its parents.
    let answers = join_all(rest.rev().map(|number| ask(Some(number), MODELS[0]))).await;
    for answer in answers {
        assert_eq!(answer.reason(), Some(reason), "{case}");
    }
    assert_eq!(gateway.simulated_calls(MODELS[0]).await, served, "{case}");
}

#[test]
fn a_sub_agent_of_a_run_that_has_ended_is_not_served() {
    run(async {
        for (how, caps, reason) in ENDS {
            for agent in [Agent::ClaudeCode, Agent::Codex] {
                for shape in [Shape::FanOut, Shape::Chain] {
                    is_told(how, caps, reason, agent, shape).await;
                }
            }
        }
    });
}

/// The tree is walked once for a listing and once for a shutdown. The bounds are those of an operator;
/// the least of several times leaves out what else the machine does.
#[test]
fn a_chain_of_three_thousand_is_listed_and_shut_down_at_once() {
    run(async {
        let mut gateway = Gateway::simulated("", &MODELS).await;
        let first = Agent::ClaudeCode
            .ask(&gateway, Shape::Chain, None, MODELS[0])
            .await;
        assert_eq!(first.status, 200);
        for number in 0..3_000 {
            let number = Some(number);
            let answer = Agent::ClaudeCode
                .ask(&gateway, Shape::Chain, number, MODELS[0])
                .await;
            assert_eq!(answer.status, 200);
        }
        let mut pages = Vec::new();
        for _ in 0..10 {
            let began = Instant::now();
            assert_eq!(
                gateway.json("/runs").await["runs"]
                    .as_array()
                    .unwrap()
                    .len(),
                100
            );
            pages.push(began.elapsed());
        }
        let page = pages.iter().min().unwrap();
        assert!(*page < Duration::from_millis(50), "{pages:?}");
        let told = gateway
            .log()
            .matches("sub-agents nested too deeply")
            .count();
        assert_eq!(told, 1, "once");

        let began = Instant::now();
        gateway.signal("TERM");
        assert!(gateway.exit_status().await.success());
        let exit = began.elapsed();
        println!("a page {page:?}, SIGTERM to exit {exit:?}");
        assert!(exit < Duration::from_secs(1), "{exit:?}");
    });
}
