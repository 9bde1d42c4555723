//! What a response continues: the gateway sends the whole input, so that any candidate can answer.

use serde_json::{Value, json};

use super::client::{Caller, continuing, create, input, kept_item, upstream};
use crate::{net::run, support::Config};

fn user(text: &str) -> Value {
    json!({ "type": "message", "role": "user", "content": text })
}

#[test]
fn a_continuation_is_sent_whole_and_without_ids() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("one").await;
        let first = caller.completed().await;
        caller.send(&continuing(&first, "two")).await;
        let second = caller.completed().await;
        let mut third = continuing(&second, "");
        third["input"] = json!([]);
        caller.send(&third).await;
        caller.completed().await;

        let calls = upstream.calls();
        assert_eq!(input(&calls[0]), [user("one")]);
        let two = [user("one"), kept_item("ok"), user("two")];
        assert_eq!(input(&calls[1]), two);
        assert_eq!(input(&calls[2])[..3], two);
        assert_eq!(input(&calls[2])[3..], [kept_item("ok")]);
        for call in &calls {
            let body = call.json();
            let members: Vec<_> = body.as_object().unwrap().keys().collect();
            assert_eq!(members, ["input", "model", "store", "stream"], "{body}");
            assert_eq!(body["stream"], true);
            assert_eq!(call.headers["content-type"], "application/json");
            assert!(call.headers.get("sec-websocket-key").is_none());
        }
    });
}

#[test]
fn an_input_that_is_a_text_is_continued_as_a_message() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        let mut event = create("");
        event["input"] = "hi".into();
        caller.send(&event).await;
        let id = caller.completed().await;
        caller.send(&continuing(&id, "more")).await;
        caller.completed().await;
        let calls = upstream.calls();
        assert_eq!(calls[0].json()["input"], "hi", "as it was sent");
        assert_eq!(
            input(&calls[1]),
            [user("hi"), kept_item("ok"), user("more")]
        );
    });
}

/// What Codex does at the start of each session.
#[test]
fn a_response_without_a_model_is_continued() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        let mut prewarm = create("instructions");
        prewarm["generate"] = false.into();
        caller.send(&prewarm).await;
        let events = caller.response().await;
        let kinds: Vec<_> = events.iter().map(|event| &event["type"]).collect();
        assert_eq!(kinds, ["response.created", "response.completed"]);
        let response = &events[1]["response"];
        assert_eq!(
            (&response["usage"]["total_tokens"], &response["output"]),
            (&0.into(), &json!([]))
        );
        assert_eq!(upstream.count(), 0);
        assert_eq!(gateway.json("/runs").await["runs"], json!([]), "no run");

        let id = response["id"].as_str().unwrap();
        caller.send(&continuing(id, "go")).await;
        caller.completed().await;
        // On another socket nobody knows it, and no upstream could.
        let mut elsewhere = Caller::connect(&gateway).await;
        let mut stored = continuing(id, "go");
        stored.as_object_mut().unwrap().remove("store");
        elsewhere.send(&stored).await;
        let code = &elsewhere.error().await["error"]["code"];
        assert_eq!(code, "previous_response_not_found");
        assert_eq!(
            input(&upstream.calls()[0]),
            [user("instructions"), user("go")]
        );
    });
}

#[test]
fn an_unknown_response_is_not_found_unless_the_upstream_may_have_it() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.send(&continuing("resp_elsewhere", "one")).await;
        let error = caller.error().await;
        assert_eq!(error["status"], 400);
        assert_eq!(error["error"]["code"], "previous_response_not_found");
        assert_eq!(error["error"]["param"], "previous_response_id");
        assert_eq!(upstream.count(), 0);

        let mut stored = continuing("resp_elsewhere", "two");
        stored.as_object_mut().unwrap().remove("store");
        caller.send(&stored).await;
        let id = caller.completed().await;
        let body = upstream.calls()[0].json();
        assert_eq!(body["previous_response_id"], "resp_elsewhere");
        // The next one stands on the same.
        caller.send(&continuing(&id, "three")).await;
        caller.completed().await;
        let body = upstream.calls()[1].json();
        assert_eq!(body["previous_response_id"], "resp_elsewhere");
        assert_eq!(
            input(&upstream.calls()[1]),
            [user("two"), kept_item("ok"), user("three")]
        );

        let mut none = create("four");
        none["previous_response_id"] = Value::Null;
        caller.send(&none).await;
        caller.completed().await;
        assert_eq!(input(&upstream.calls()[2]), [user("four")]);
    });
}

#[test]
fn a_continuation_that_fails_takes_the_id_along_in_its_own_lane_alone() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[retry]\nmax_attempts_per_candidate = 1");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("one").await;
        let id = caller.completed().await;

        let mut elsewhere = continuing(&id, "400");
        elsewhere["stream_id"] = "other".into();
        caller.send(&elsewhere).await;
        assert_eq!(caller.error().await["error"]["code"], "some_code");

        // Its own lane still has it; then it fails there.
        caller.send(&continuing(&id, "400")).await;
        assert_eq!(caller.error().await["status"], 400);
        caller.send(&continuing(&id, "two")).await;
        assert_eq!(
            caller.error().await["error"]["code"],
            "previous_response_not_found"
        );
    });
}

#[test]
fn a_conversation_beyond_sixteen_mebibytes_is_not_kept() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        let mut event = create("one");
        let filler = "x".repeat(16 * 1024 * 1024);
        event["input"]
            .as_array_mut()
            .unwrap()
            .insert(0, user(&filler));
        caller.send(&event).await;
        let id = caller.completed().await;
        caller.send(&continuing(&id, "two")).await;
        assert_eq!(
            caller.error().await["error"]["code"],
            "previous_response_not_found"
        );
        // In full it goes on, on the same socket.
        caller.create("three").await;
        caller.completed().await;
    });
}

/// The text of an agent's client has escapes, floats and large numbers: none may change.
#[test]
fn no_byte_of_an_item_changes() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        let item = r#"{"type":"message","role":"user","content":[{"type":"input_text","text":"\u00e9\/ é \ud83d\ude00"}],"n":1.0,"big":18446744073709551617,"z":1,"a":2}"#;
        caller
            .send_text(format!(
                r#"{{"type":"response.create","model":"m","input":[{item}]}}"#
            ))
            .await;
        let id = caller.completed().await;
        caller.send_text(format!(r#"{{"type":"response.create","model":"m","previous_response_id":"{id}","input":[]}}"#)).await;
        caller.completed().await;
        for call in upstream.calls() {
            let body = std::str::from_utf8(&call.body).unwrap();
            assert!(body.contains(item), "{body}");
        }
    });
}
