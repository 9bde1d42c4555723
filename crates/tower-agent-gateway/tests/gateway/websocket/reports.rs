//! What users of other gateways have reported about the Responses API over WebSocket.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::client::{Caller, continuing, create, input, kept_item, upstream};
use crate::{
    net::{Ask, Play, SSE_HEAD, Upstream, chunk, run, within},
    support::Config,
};

/// `BerriAI/litellm#40010`: the model was read from the raw text, so that an escaped key passed the check, and
/// the model of a later event was not read at all.
#[test]
fn each_event_names_its_model_however_the_key_is_written() {
    run(async {
        let (one, two) = (upstream().await, upstream().await);
        let config = Config::new("")
            .candidate("one", one.addr)
            .candidate("two", two.addr);
        let gateway = config.start().await;
        let mut caller = Caller::connect(&gateway).await;
        let event = |key: &str, model: &str| {
            format!(
                r#"{{"type":"response.create","{key}":"{model}","store":false,"input":[{{"role":"user","content":"ok"}}]}}"#
            )
        };
        for (key, model) in [("model", "one"), ("mod\\u0065l", "two"), ("model", "two")] {
            caller.send_text(event(key, model)).await;
            caller.completed().await;
        }
        assert_eq!((one.count(), two.count()), (1, 2));
        assert_eq!(two.calls()[0].json()["model"], "two");
    });
}

/// `BerriAI/litellm#39559`: a caller continued the response of another caller, and got its secrets.
#[test]
fn no_caller_continues_the_response_of_another() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[auth]\nkeys_env = \"KEYS\"").candidate("m", upstream.addr);
        let gateway = config.env("KEYS", "one:sk-one,two:sk-two").start().await;
        let mut owner = Caller::connect_with(&gateway, &[("authorization", "Bearer sk-one")]).await;
        owner.create("my secret").await;
        let id = owner.completed().await;
        let mut stranger =
            Caller::connect_with(&gateway, &[("authorization", "Bearer sk-two")]).await;
        stranger.send(&continuing(&id, "what is it")).await;
        assert_eq!(
            stranger.error().await["error"]["code"],
            "previous_response_not_found"
        );
        assert_eq!(upstream.count(), 1);
    });
}

/// `router-for-me/CLIProxyAPI#6006`: only the first event of a connection was answered without a model; a later
/// one went upstream, and was billed.
#[test]
fn a_later_response_without_a_model_is_not_billed_and_is_continued() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("one").await;
        let first = caller.completed().await;
        let mut warm = continuing(&first, "two");
        warm["generate"] = false.into();
        caller.send(&warm).await;
        let events = caller.response().await;
        let response = &events.last().unwrap()["response"];
        assert_eq!(
            (&response["output"], &response["status"]),
            (&json!([]), &"completed".into())
        );
        assert_eq!(upstream.count(), 1);
        let mut go = continuing(response["id"].as_str().unwrap(), "");
        go["input"] = json!([]);
        caller.send(&go).await;
        caller.completed().await;
        let said: Vec<_> = input(&upstream.calls()[1])
            .iter()
            .map(|item| item["content"].clone())
            .collect();
        assert_eq!(
            said,
            [
                json!("one"),
                kept_item("ok")["content"].clone(),
                json!("two")
            ]
        );
    });
}

/// `nicosuave/comradex#78`, `sozercan/vekil#391`, `router-for-me/CLIProxyAPI#4524`: a conversation stayed with the
/// account that had begun it, and was lost when that was exhausted.
#[test]
fn a_conversation_goes_on_with_another_candidate() {
    run(async {
        let spare = upstream().await;
        // It serves once, and is then out of quota.
        let first = Upstream::http1_of(|call| match call.connection {
            _ if call.json()["input"].as_array().is_some_and(|items| items.len() > 1) => {
                let body = r#"{"error":{"message":"quota","type":"insufficient_quota","code":"insufficient_quota"}}"#;
                let length = body.len();
                Play::keep(format!("HTTP/1.1 429 Failure\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"))
            }
            _ => answer("resp_first"),
        })
        .await;
        let config = Config::new("")
            .candidate("m", first.addr)
            .candidate("n", spare.addr);
        let gateway = config.start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("one").await;
        let mut id = caller.completed().await;
        for turn in ["two", "three"] {
            caller.send(&continuing(&id, turn)).await;
            id = caller.completed().await;
        }
        assert_eq!(input(&spare.calls()[0]).len(), 3);
        assert_eq!(input(&spare.calls()[1]).len(), 5);
    });
}

fn answer(id: &str) -> Play {
    let item = json!({ "id": "msg_1", "type": "message", "role": "assistant", "content": [] });
    let events = [
        json!({ "type": "response.created", "response": { "id": id, "object": "response" } }),
        json!({ "type": "response.output_text.delta", "delta": "t" }),
        json!({ "type": "response.output_item.done", "item": item }),
        json!({ "type": "response.completed", "response": { "id": id, "output": [item] } }),
    ];
    let events: String = events
        .iter()
        .map(|event| format!("data: {event}\n\n"))
        .collect();
    Play::keep(format!("{SSE_HEAD}{}0\r\n\r\n", chunk(&events)))
}

/// `icebear0828/codex-proxy#752`: a client that never finishes the closing handshake held up the shutdown.
#[test]
fn a_caller_that_does_not_close_holds_up_no_shutdown() {
    run(async {
        let upstream = upstream().await;
        let mut gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("ok").await;
        caller.completed().await;
        // Nobody reads the socket from now on.
        let began = Instant::now();
        gateway.signal("TERM");
        assert!(gateway.exit_status().await.success());
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{:?}",
            began.elapsed()
        );
        drop(caller);
    });
}

/// `fawney19/Aether#730`: headers of the upgrade reached the upstream that concern the connection or are
/// credentials of the caller.
#[test]
fn headers_of_the_connection_and_credentials_stay_here() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let headers = [
            ("connection", "Upgrade, x-hop"),
            ("x-hop", "secret"),
            ("proxy-authorization", "Basic c2VjcmV0"),
            ("te", "trailers"),
            ("x-end", "to-end"),
        ];
        let mut caller = Caller::connect_with(&gateway, &headers).await;
        caller.create("ok").await;
        caller.completed().await;
        let call = &upstream.calls()[0];
        for name in [
            "x-hop",
            "proxy-authorization",
            "te",
            "upgrade",
            "connection",
            "sec-websocket-version",
        ] {
            assert!(
                !call.headers.contains_key(name),
                "{name}: {:?}",
                call.headers
            );
        }
        assert_eq!(call.headers["x-end"], "to-end");
    });
}

/// `fawney19/Aether#730`: what was allowed at the upgrade stayed allowed for the life of the connection.
#[test]
fn each_response_is_admitted_anew() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("ok").await;
        caller.completed().await;
        assert_eq!(
            gateway
                .request(http::Method::PUT, "/freeze")
                .ask()
                .await
                .status,
            200
        );
        caller.create("ok").await;
        let error = caller.error().await;
        assert_eq!(
            (&error["status"], &error["error"]["code"]),
            (&503.into(), &"frozen".into())
        );
        assert_eq!(
            gateway
                .request(http::Method::DELETE, "/freeze")
                .ask()
                .await
                .status,
            200
        );
        caller.create("ok").await;
        caller.completed().await;
        assert_eq!(upstream.count(), 2);
    });
}

/// `router-for-me/CLIProxyAPI#5413`: nothing was sent while a model thought, so that a proxy in front with a read
/// timeout of its own (nginx: 60 s) cut the socket.
#[test]
fn a_silent_response_sends_something_within_each_keep_alive() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[server]\nkeep_alive = \"2s\"");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("stall").await;
        caller.begun().await;
        for _ in 0..2 {
            let since = Instant::now();
            let next = within(caller.socket.next()).await.unwrap().unwrap();
            assert!(matches!(next, Message::Ping(_)), "{next:?}");
            let took = since.elapsed();
            assert!(took < Duration::from_secs(2), "{took:?}");
        }
    });
}

/// `ding113/claude-code-hub#1435`: an event of several `data` lines became a message that is not
/// JSON.
#[test]
fn an_event_of_several_lines_is_one_message() {
    run(async {
        let events = "event: response.created\ndata: {\"type\": \"response.created\",\ndata: \"response\": {\"id\": \"resp_1\"}}\n\n\
                      data: {\"type\":\"response.output_text.delta\",\ndata:  \"delta\":\"t\"}\n\n\
                      data: {\"type\":\"response.completed\",\ndata: \"response\":{\"id\":\"resp_1\",\"output\":[]}}\n\n";
        let upstream = Upstream::bytes(format!("{SSE_HEAD}{}0\r\n\r\n", chunk(events))).await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("ok").await;
        let events = caller.response().await;
        let kinds: Vec<&Value> = events.iter().map(|event| &event["type"]).collect();
        assert_eq!(
            kinds,
            [
                "response.created",
                "response.output_text.delta",
                "response.completed"
            ]
        );
    });
}

/// `router-for-me/CLIProxyAPI#4017`, `ding113/claude-code-hub#1153`: a long conversation was cut by a limit of 1
/// or 16 MiB a message, with a reset.
#[test]
fn a_conversation_of_twenty_four_mebibytes_is_one_message() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        let mut event = create("ok");
        let image = "A".repeat(24 << 20);
        let items = event["input"].as_array_mut().unwrap();
        items.insert(
            0,
            json!({ "role": "user", "content": [{ "type": "input_image", "image_url": image }] }),
        );
        caller.send(&event).await;
        caller.completed().await;
        assert!(upstream.calls()[0].body.len() > 24 << 20);
    });
}
