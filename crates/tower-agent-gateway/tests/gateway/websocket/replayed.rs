//! What Codex sent over its WebSockets, replayed: two turns of its user, each with three calls.
//!
//! `tests/agents/run` records the fixtures from the real Codex.
//!
//! covers: H7, H13

use serde_json::{Value, json};

use super::client::{Caller, PATH, input, kept_item, upstream};
use crate::{
    net::{Ask, Upstream, run},
    support::{Config, Gateway},
};

/// With a model that it does not know, and with the one of its own choice, for which it has no tools in the
/// body, and no input in the event at its start.
const FIXTURES: [&str; 2] = [
    include_str!("../../../../../tests/fixtures/agents/codex-socket-turns.json"),
    include_str!("../../../../../tests/fixtures/agents/codex-default-turns.json"),
];

/// What Codex sent over one socket.
struct Socket {
    headers: Vec<(String, String)>,
    /// The event without a model, and those of the calls.
    events: Vec<Value>,
}

impl Socket {
    fn all(fixture: &str) -> Vec<Self> {
        let sockets: Vec<Value> = serde_json::from_str(fixture).unwrap();
        let sockets = sockets.iter().map(|socket| {
            assert_eq!(socket["path"], PATH);
            let headers = socket["headers"].as_object().unwrap().iter();
            let headers =
                headers.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
            let events = socket["events"].as_array().unwrap().clone();
            assert_eq!(events[0]["generate"], false);
            Self {
                headers: headers.collect(),
                events,
            }
        });
        sockets.collect()
    }

    async fn connect(&self, gateway: &Gateway) -> Caller {
        let headers = self.headers.iter();
        let headers: Vec<_> = headers.map(|(name, value)| (&**name, &**value)).collect();
        Caller::connect_with(gateway, &headers).await
    }
}

/// Sends an event of a fixture, as a continuation of the last response; `Err` is its error.
async fn send(caller: &mut Caller, event: &Value, last: &mut String) -> Result<(), Value> {
    let mut event = event.clone();
    if let Some(previous) = event.get_mut("previous_response_id") {
        *previous = last.as_str().into();
    }
    caller.send(&event).await;
    let end = caller.response().await.pop().unwrap();
    if end["type"] != "response.completed" {
        return Err(end);
    }
    end["response"]["id"].as_str().unwrap().clone_into(last);
    Ok(())
}

/// Plays all events; each end of a call is its error's code, or empty.
async fn replay(gateway: &Gateway, fixture: &str) -> Vec<String> {
    let mut ends = Vec::new();
    for socket in Socket::all(fixture) {
        let mut caller = socket.connect(gateway).await;
        let mut last = String::new();
        send(&mut caller, &socket.events[0], &mut last)
            .await
            .unwrap();
        for event in &socket.events[1..] {
            let end = send(&mut caller, event, &mut last).await;
            ends.push(end.map_or_else(
                |error| error["error"]["code"].as_str().unwrap().to_owned(),
                |()| String::new(),
            ));
        }
    }
    ends
}

async fn start(config: &str) -> (Upstream, Gateway) {
    let upstream = upstream().await;
    let gateway = Config::new(config).candidate("m", upstream.addr);
    let gateway = gateway.start().await;
    (upstream, gateway)
}

#[test]
fn one_turn_of_the_user_is_one_run() {
    run(async {
        for fixture in FIXTURES {
            let (upstream, gateway) = start("").await;
            assert_eq!(replay(&gateway, fixture).await, [""; 6]);
            // The event at the start is neither a call nor a run.
            assert_eq!(upstream.count(), 6);
            let runs = gateway.json("/runs").await;
            let runs = runs["runs"].as_array().unwrap();
            let turns = runs.iter().rev().map(|run| (&run["run"], &run["turns"]));
            let turns: Vec<_> = turns.collect();
            // Each run has the id that Codex gave its turn.
            let three = json!(3);
            let sockets = Socket::all(fixture);
            let ids = sockets
                .iter()
                .map(|socket| &socket.events[1]["client_metadata"]["turn_id"]);
            let expected: Vec<_> = ids.map(|id| (id, &three)).collect();
            assert_eq!(turns, expected);
            assert!(runs[0]["session"].is_string());
            assert_eq!(runs[0]["session"], runs[1]["session"]);
        }
    });
}

#[test]
fn the_upstream_gets_each_call_whole_and_by_post() {
    run(async {
        for fixture in FIXTURES {
            let (upstream, gateway) = start("").await;
            replay(&gateway, fixture).await;
            let mut calls = upstream.calls().into_iter();
            for socket in Socket::all(fixture) {
                let mut whole = Vec::new();
                for event in &socket.events {
                    whole.extend(event["input"].as_array().unwrap().iter().cloned());
                    if event["generate"] == false {
                        continue;
                    }
                    let call = calls.next().unwrap();
                    assert_eq!(input(&call), whole);
                    whole.push(kept_item("ok"));

                    // The event of the call says which turn it is, and not the upgrade.
                    let metadata = &event["client_metadata"];
                    for (header, value) in [
                        ("x-codex-turn-metadata", &metadata["x-codex-turn-metadata"]),
                        ("session-id", &metadata["session_id"]),
                    ] {
                        assert_eq!(call.headers[header], *value.as_str().unwrap());
                    }
                    for name in ["openai-beta", "sec-websocket-extensions", "upgrade"] {
                        assert!(call.headers.get(name).is_none(), "{name}");
                    }

                    // All else goes as in a POST of Codex.
                    let mut expected = event.clone();
                    let members = expected.as_object_mut().unwrap();
                    members.remove("type");
                    members.remove("previous_response_id");
                    members.insert("model".to_owned(), "m".into());
                    members.insert("input".to_owned(), json!(input(&call)));
                    let metadata = members["client_metadata"].as_object_mut().unwrap();
                    metadata.retain(|name, _| {
                        !name.starts_with("x-codex-ws-") && !name.starts_with("ws_request_header_")
                    });
                    assert_eq!(call.json(), expected);
                }
            }
            assert!(calls.next().is_none());
        }
    });
}

/// covers: D1
#[test]
fn a_cap_holds_within_a_turn_and_the_next_turn_starts_afresh() {
    run(async {
        for fixture in FIXTURES {
            let (upstream, gateway) = start("[run]\nmax_turns = 2").await;
            let over = "turn_cap_reached";
            assert_eq!(
                replay(&gateway, fixture).await,
                ["", "", over, "", "", over]
            );
            assert_eq!(upstream.count(), 4);
        }
    });
}

/// covers: C4
#[test]
fn an_abort_by_codexs_own_session_ends_the_turn() {
    run(async {
        for fixture in FIXTURES {
            let (upstream, gateway) = start("").await;
            let sockets = Socket::all(fixture);
            let mut last = String::new();
            let mut caller = sockets[0].connect(&gateway).await;
            for event in &sockets[0].events[..2] {
                send(&mut caller, event, &mut last).await.unwrap();
            }
            let session = &sockets[0].events[0]["client_metadata"]["session_id"];
            let abort = format!("/sessions/{}/abort", session.as_str().unwrap());
            assert_eq!(gateway.post(&abort, "").ask().await.status, 200);
            let told = send(&mut caller, &sockets[0].events[2], &mut last).await;
            assert_eq!(told.unwrap_err()["error"]["code"], "aborted");

            let mut caller = sockets[1].connect(&gateway).await;
            for event in &sockets[1].events[..2] {
                send(&mut caller, event, &mut last).await.unwrap();
            }
            assert_eq!(upstream.count(), 2);
        }
    });
}
