//! Every response is a call under all layers, as one over HTTP.

use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Caller, continuing, create, input, upstream};
use crate::{
    net::{Ask, run},
    support::{Config, Gateway},
};

/// A `response.create` of Codex, in a turn of a session.
fn of_turn(turn: &str, input: &str) -> Value {
    let mut event = create(input);
    let metadata = json!({ "session_id": "s-1", "turn_id": turn }).to_string();
    event["client_metadata"] = json!({ "session_id": "s-1", "x-codex-turn-metadata": metadata });
    event
}

async fn runs(gateway: &Gateway) -> Vec<(String, u64)> {
    let runs = gateway.json("/runs").await;
    let runs = runs["runs"].as_array().unwrap().iter();
    let mut runs: Vec<_> = runs
        .map(|run| {
            (
                run["run"].as_str().unwrap().to_owned(),
                run["turns"].as_u64().unwrap(),
            )
        })
        .collect();
    runs.sort();
    runs
}

/// What must not be repeated is a 400 here: Codex repeats all else.
#[track_caller]
fn assert_final(error: &Value, reason: &str) {
    assert_eq!(error["error"]["code"], reason, "{error}");
    assert_eq!(error["status"], 400, "{error}");
    assert_eq!(error["headers"]["x-terminal-reason"], reason, "{error}");
    assert_eq!(error["headers"]["x-should-retry"], "false", "{error}");
}

#[test]
fn one_turn_of_the_user_is_one_run_and_the_event_tells_which() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        // The headers of the upgrade are of the turn in which the socket was opened.
        let old = json!({ "session_id": "s-1", "turn_id": "old" }).to_string();
        let headers = [("x-codex-turn-metadata", &*old), ("session-id", "s-1")];
        let mut caller = Caller::connect_with(&gateway, &headers).await;
        for turn in ["t-1", "t-1", "t-2"] {
            caller.send(&of_turn(turn, "ok")).await;
            caller.completed().await;
        }
        let expected = [("t-1".to_owned(), 2), ("t-2".to_owned(), 1)];
        assert_eq!(runs(&gateway).await, expected);
        let call = &upstream.calls()[0];
        let sent = &call.headers["x-codex-turn-metadata"];
        assert!(sent.to_str().unwrap().contains("t-1"), "{sent:?}");
    });
}

#[test]
fn a_cap_ends_the_run_and_every_later_response_of_it() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[run]\nmax_turns = 2");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect_with(&gateway, &[("x-run-id", "r-1")]).await;
        for _ in 0..2 {
            caller.create("ok").await;
            caller.completed().await;
        }
        for _ in 0..2 {
            caller.create("ok").await;
            let error = caller.error().await;
            assert_final(&error, "turn_cap_reached");
            assert_eq!(error["headers"]["x-run-id"], "r-1");
        }
        assert_eq!(upstream.count(), 2);
    });
}

#[test]
fn the_abort_of_a_session_ends_a_response_that_runs() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.send(&of_turn("t-1", "stall")).await;
        caller.begun().await;
        let aborted = gateway.post("/sessions/s-1/abort", "").ask().await;
        assert_eq!(aborted.status, 200);
        assert_final(&caller.error().await, "aborted");
        upstream.until_open(0).await;
        caller.send(&of_turn("t-1", "more")).await;
        assert_final(&caller.error().await, "aborted");
        // The session's next turn is another run.
        caller.send(&of_turn("t-2", "ok")).await;
        caller.completed().await;
        assert_eq!(upstream.count(), 2);
    });
}

#[test]
fn a_pause_holds_the_next_response_and_a_resume_lets_it_go() {
    run(async {
        let upstream = upstream().await;
        let config =
            Config::new("[run]\nmax_turns = 9\nat_cap = \"pause\"\npause_wait = \"300ms\"");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect_with(&gateway, &[("x-run-id", "r-1")]).await;
        caller.create("ok").await;
        caller.completed().await;
        let paused = gateway.post("/runs/r-1/pause", "").ask().await;
        assert_eq!(paused.status, 200);
        caller.create("held").await;
        let error = caller.error().await;
        assert_eq!(
            (&error["status"], &error["error"]["code"]),
            (&503.into(), &"run_paused".into())
        );
        assert_eq!(error["headers"]["x-should-retry"], "true");
        assert!(error["headers"]["retry-after"].is_string(), "{error}");
        gateway.post("/runs/r-1/resume", "").ask().await;
        caller.create("ok").await;
        caller.completed().await;
        assert_eq!(upstream.count(), 2);
    });
}

#[test]
fn a_candidate_that_fails_falls_back_before_the_caller_sees_anything() {
    run(async {
        let failing = upstream_of_500().await;
        let serving = upstream().await;
        let config = Config::new("[retry]\nmax_attempts_per_candidate = 1");
        let gateway = config
            .candidate("m", failing.addr)
            .candidate("n", serving.addr)
            .start()
            .await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("one").await;
        let first = caller.completed().await;
        caller.send(&continuing(&first, "two")).await;
        caller.completed().await;
        // The second candidate has never heard of an id, and has the whole conversation.
        assert_eq!(input(&serving.calls()[1]).len(), 3);
        assert!(failing.count() > 0);
    });
}

async fn upstream_of_500() -> crate::net::Upstream {
    let body = "{\"error\":{\"message\":\"no\"}}";
    let length = body.len();
    crate::net::Upstream::bytes(format!(
        "HTTP/1.1 500 Failure\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    ))
    .await
}

#[test]
fn an_upstream_that_stalls_is_cut_and_says_why() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new(
            "[attempt]\nstep_timeout = \"300ms\"\n[retry]\nmax_attempts_per_candidate = 1",
        );
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("stall").await;
        let events = caller.response().await;
        assert_final(events.last().unwrap(), "step_timeout");
        upstream.until_open(0).await;
        // The socket stays: the caller decides.
        caller.create("ok").await;
        caller.completed().await;
    });
}

#[test]
fn an_upstream_that_is_cut_or_fails_is_told_with_a_status() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[retry]\nmax_attempts_per_candidate = 1");
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("cut").await;
        let error = caller.error().await;
        assert_eq!(
            (&error["status"], &error["error"]["code"]),
            (&502.into(), &"upstream_failed".into())
        );
        assert!(
            error["headers"].get("x-terminal-reason").is_none(),
            "{error}"
        );
        // Behind content nothing is repeated, and the upstream's own words pass.
        caller.create("error").await;
        let error = caller.error().await;
        assert_eq!(
            (&error["status"], &error["error"]["code"]),
            (&502.into(), &"server_error".into())
        );
        assert_eq!(error["error"]["message"], "no");
        for status in [400, 401, 404, 429, 503] {
            caller.create(&status.to_string()).await;
            let error = caller.error().await;
            assert_eq!(
                (&error["status"], &error["error"]["code"]),
                (&status.into(), &"some_code".into())
            );
        }
    });
}

#[test]
fn a_silent_upstream_is_kept_alive_by_events() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new(
            "[retry]\nmax_attempts_per_candidate = 1\n[progress]\nkeep_alive = \"50ms\"\nearly_head = \"100ms\"",
        );
        let gateway = config.candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        caller.create("held").await;
        caller.begun().await;
        for _ in 0..3 {
            assert_eq!(caller.event().await, json!({ "type": "keepalive" }));
        }
        upstream.resume();
        caller.completed().await;

        // Before a head, too; and the status of a failure is not lost.
        caller.create("late").await;
        let events = caller.response().await;
        let (error, before) = events.split_last().unwrap();
        assert!(
            before.len() > 5 && before.iter().all(|it| it["type"] == "keepalive"),
            "{before:?}"
        );
        assert_eq!(
            (&error["status"], &error["error"]["code"]),
            (&429.into(), &"some_code".into())
        );
    });
}

/// What Codex sends when its user types during a response.
#[test]
fn an_interrupt_releases_the_upstream_and_the_conversation_goes_on() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect_with(&gateway, &[("x-run-id", "r-1")]).await;
        caller.create("stall").await;
        let id = &*caller.begun().await;
        caller
            .send(&json!({ "type": "response.interrupt", "response_id": "another" }))
            .await;
        let interrupt = json!({ "type": "response.interrupt", "response_id": id, "mode": "discard_partial_items" });
        caller.send(&interrupt).await;
        assert_eq!(caller.event().await["type"], "response.interrupt.accepted");
        let incomplete = caller.event().await;
        assert_eq!(incomplete["type"], "response.incomplete");
        assert_eq!(
            incomplete["response"]["incomplete_details"]["reason"],
            "interrupted"
        );
        upstream.until_open(0).await;
        caller.send(&continuing(id, "ok")).await;
        caller.completed().await;
        assert_eq!(input(&upstream.calls()[1]).len(), 2);
        assert_eq!(runs(&gateway).await, [("r-1".to_owned(), 2)]);
        // An interrupt that comes too late is not an error.
        caller.send(&interrupt).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        caller.create("ok").await;
        caller.completed().await;
    });
}

/// A run of one call is over when its response is: what comes next is not one run too many.
#[test]
fn the_run_of_a_response_is_over_before_the_next_one_begins() {
    run(async {
        let upstream = upstream().await;
        let config = Config::new("[auth]\nkeys_env = \"KEYS\"\nmax_open_runs = 1");
        let config = config.candidate("m", upstream.addr);
        let gateway = config.env("KEYS", "one:sk-one").start().await;
        let key = [("authorization", "Bearer sk-one")];
        let mut caller = Caller::connect_with(&gateway, &key).await;
        for _ in 0..30 {
            caller.create("late-end").await;
            caller.completed().await;
        }
    });
}

#[test]
fn an_upstream_names_no_lane_of_the_caller() {
    run(async {
        let upstream = upstream().await;
        let gateway = Config::new("").candidate("m", upstream.addr).start().await;
        let mut caller = Caller::connect(&gateway).await;
        let mut event = create("laned");
        event["stream_id"] = "a".into();
        caller.send(&event).await;
        let events = caller.response().await;
        assert!(
            events.iter().all(|event| event["stream_id"] == "a"),
            "{events:?}"
        );
        caller.create("laned").await;
        let events = caller.response().await;
        assert!(
            events.iter().all(|event| event.get("stream_id").is_none()),
            "{events:?}"
        );
    });
}
