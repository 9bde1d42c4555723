//! A caller's socket, and one to its upstream.

use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_tungstenite::{accept_async, tungstenite::Message};

use super::client::{Caller, continuing, create, input, upstream};
use crate::{
    net::{run, within},
    support::Config,
};

/// What an upstream sees: the number of the socket, and an event of it; `None` once it is closed.
type Seen = (usize, Option<Value>);

/// An upstream that speaks WebSocket alone, and does what the last user message says.
async fn socket_upstream() -> (std::net::SocketAddr, mpsc::UnboundedReceiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, seen) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            let sender = sender.clone();
            tokio::spawn(async move {
                let Ok(mut socket) = accept_async(stream).await else {
                    return;
                };
                let mut turn = 0;
                while let Some(Ok(message)) = socket.next().await {
                    let Message::Text(text) = message else {
                        continue;
                    };
                    let event: Value = serde_json::from_str(&text).unwrap();
                    turn += 1;
                    let word =
                        event["input"].as_array().unwrap().last().unwrap()["content"].clone();
                    let _ = sender.send((number, Some(event)));
                    for answer in answers(word.as_str().unwrap(), &format!("resp_{number}_{turn}"))
                    {
                        let _ = socket.send(Message::text(answer.to_string())).await;
                    }
                }
                let _ = sender.send((number, None));
            });
        }
    });
    (addr, seen)
}

fn answers(word: &str, id: &str) -> Vec<Value> {
    let item = super::client::item("ok");
    let begin = [
        json!({ "type": "response.created", "response": { "id": id, "object": "response" } }),
        json!({ "type": "response.output_text.delta", "delta": "t" }),
    ];
    let end = [
        json!({ "type": "response.output_item.done", "output_index": 0, "item": item }),
        json!({ "type": "response.completed", "response": { "id": id, "output": [item],
            "usage": { "input_tokens": 4, "output_tokens": 2, "total_tokens": 6 } } }),
    ];
    match word {
        "stall" => begin.into(),
        "429" => vec![
            json!({ "type": "error", "status": 429, "error": { "type": "rate_limit_error", "code": "rate_limit_exceeded",
            "message": "slow down" }, "headers": { "retry-after": "60" } }),
        ],
        _ => begin.into_iter().chain(end).collect(),
    }
}

/// A gateway that asks this upstream over sockets.
fn asking(addr: std::net::SocketAddr) -> Config {
    let config = Config::new("").candidate("m", addr);
    config.set("transport = \"websocket\"")
}

async fn next(seen: &mut mpsc::UnboundedReceiver<Seen>) -> Seen {
    within(seen.recv()).await.unwrap()
}

#[test]
fn a_lane_of_the_caller_has_a_socket_of_its_own_upstream() {
    run(async {
        let (addr, mut seen) = socket_upstream().await;
        let config = asking(addr);
        let gateway = config.start().await;
        let mut caller = Caller::connect_with(&gateway, &[("x-run-id", "r-1")]).await;
        caller.create("one").await;
        let mut id = caller.completed().await;
        let (first, event) = next(&mut seen).await;
        assert_eq!(event.unwrap()["input"].as_array().unwrap().len(), 1);
        for turn in ["two", "three"] {
            caller.send(&continuing(&id, turn)).await;
            let (number, event) = next(&mut seen).await;
            let event = event.unwrap();
            assert_eq!(
                (number, &event["previous_response_id"]),
                (first, &id.as_str().into())
            );
            assert_eq!(event["input"], create(turn)["input"], "what is new alone");
            id = caller.completed().await;
        }
        let mut other = create("one");
        other["stream_id"] = "b".into();
        caller.send(&other).await;
        caller.completed().await;
        assert_ne!(next(&mut seen).await.0, first);
        assert_eq!(gateway.json("/runs/r-1").await["turns"], 4);
        drop(caller);
        let closed = [next(&mut seen).await, next(&mut seen).await];
        assert!(
            closed.iter().all(|(_, event)| event.is_none()),
            "{closed:?}"
        );
    });
}

#[test]
fn a_fallback_goes_over_post_with_the_whole_conversation() {
    run(async {
        let (addr, mut seen) = socket_upstream().await;
        let spare = upstream().await;
        let config = asking(addr);
        let gateway = config.candidate("n", spare.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("one").await;
        let id = caller.completed().await;
        caller.send(&continuing(&id, "429")).await;
        // The spare upstream is asked for a 429, too, and gives one.
        let error = caller.error().await;
        assert_eq!(error["status"], 429, "{error}");
        assert_eq!(input(&spare.calls()[0]).len(), 3);
        assert!(next(&mut seen).await.1.is_some());
    });
}

#[test]
fn a_caller_that_goes_releases_the_socket_of_the_upstream() {
    run(async {
        let (addr, mut seen) = socket_upstream().await;
        let gateway = asking(addr).start().await;
        let mut took = Vec::new();
        // The machine may be busy once, and not each time.
        while took.len() < 5 && took.iter().all(|took| *took > Duration::from_millis(100)) {
            let mut caller = Caller::connect(&gateway).await;
            caller.create("stall").await;
            caller.begun().await;
            assert!(next(&mut seen).await.1.is_some());
            let began = Instant::now();
            drop(caller);
            assert_eq!(next(&mut seen).await.1, None);
            took.push(began.elapsed());
        }
        assert!(
            took.last().unwrap() <= &Duration::from_millis(100),
            "{took:?}"
        );
    });
}

/// A socket outlives the turn that has opened it: its upgrade must not speak for the next one.
#[test]
fn what_holds_for_a_turn_is_told_with_the_turn() {
    run(async {
        let (addr, mut seen) = socket_upstream().await;
        let config = asking(addr);
        let gateway = config.start().await;
        let mut caller = Caller::connect(&gateway).await;
        let lite = "ws_request_header_x_openai_internal_codex_responses_lite";
        let mut id = None::<String>;
        for (turn, value) in [("one", "false"), ("two", "true")] {
            let mut event = id
                .as_deref()
                .map_or_else(|| create(turn), |id| continuing(id, turn));
            event["client_metadata"] = json!({ "turn_id": turn, lite: value });
            caller.send(&event).await;
            let event = next(&mut seen).await.1.unwrap();
            assert_eq!(
                event["client_metadata"],
                json!({ "turn_id": turn, lite: value })
            );
            assert_eq!(event.get("previous_response_id").is_some(), id.is_some());
            id = Some(caller.completed().await);
        }
    });
}
