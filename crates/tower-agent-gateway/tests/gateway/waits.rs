//! The operator waits for runs, and ends those of a session.
//!
//! covers: C6

use serde_json::{Value, json};

use crate::{
    net::{Ask, Upstream, eventually, run, within},
    support::{Config, Gateway},
};

async fn start() -> (Upstream, Gateway) {
    let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
    (upstream, gateway)
}

async fn abort_session(gateway: &Gateway, session: &str) -> Value {
    let abort = gateway.post(&format!("/sessions/{session}/abort"), "");
    let answer = abort.ask().await;
    assert_eq!(answer.status, 200);
    answer.json()
}

#[test]
fn whoever_waits_is_answered_at_the_end_and_after_it() {
    run(async {
        let (_upstream, gateway) = start().await;
        let _stream = gateway.open_stream("one", "r-1", "s-1").await;
        let waits = [1, 2, 3].map(|_| tokio::spawn(gateway.get("/runs/r-1/wait").ask()));
        let short = gateway.json("/runs/r-1/wait?limit=20ms").await;
        assert_eq!(short, json!({"ended": false}));
        assert_eq!(gateway.json("/runs/r-1").await["reason"], Value::Null);
        assert!(waits.iter().all(|wait| !wait.is_finished()));

        assert!(gateway.abort("r-1").await);
        for wait in waits {
            let answer = within(wait).await.unwrap();
            assert_eq!(answer.status, 200);
            let ended = answer.json();
            assert_eq!(ended["run"], "r-1");
            assert_eq!(ended["reason"], "aborted");
        }
        let after = gateway.json("/runs/r-1/wait?limit=0s").await;
        assert_eq!(after["reason"], "aborted");
    });
}

#[test]
fn a_wait_for_nothing_or_without_sense_is_refused() {
    run(async {
        let (_upstream, gateway) = start().await;
        let _stream = gateway.open_stream("one", "r-1", "s-1").await;
        for (path, status, told) in [
            ("/runs/r-2/wait", 404, "no run r-2"),
            ("/runs/a%20b/wait", 400, "an id is 1 to 128"),
            ("/runs/r-1/wait?limit=soon", 400, "limit: \"soon\""),
            ("/runs/r-1/wait?until=5s", 400, "unknown field `until`"),
        ] {
            let answer = gateway.get(path).ask().await;
            assert_eq!(answer.status, status, "{path}");
            let error = &answer.json()["error"];
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(told), "{path}: {message}");
        }
    });
}

#[test]
fn a_wait_is_for_the_runs_of_all_owners_of_an_id() {
    run(async {
        let (_upstream, gateway) = start().await;
        let one = gateway.open_stream("one", "r-1", "s-1").await;
        let two = gateway.open_stream("two", "r-1", "s-2").await;
        assert_eq!(
            abort_session(&gateway, "s-1").await,
            json!({"runs": ["r-1"]})
        );
        drop(one);
        let half = gateway.json("/runs/r-1/wait?limit=20ms").await;
        assert_eq!(half, json!({"ended": false}));

        assert!(gateway.abort("r-1").await);
        let both = gateway.json("/runs/r-1/wait").await;
        let both = both["runs"].as_array().unwrap();
        assert_eq!(both.len(), 2);
        assert!(both.iter().all(|run| run["reason"] == "aborted"));
        drop(two);
    });
}

/// A connection of which nobody reads any more would be a file that stays open.
#[cfg(target_os = "linux")]
#[test]
fn a_client_that_leaves_waits_no_longer() {
    run(async {
        let (_upstream, gateway) = start().await;
        let _stream = gateway.open_stream("one", "r-1", "s-1").await;
        let before = gateway.process.open_files();
        let waits: Vec<_> = (0..20)
            .map(|_| tokio::spawn(gateway.get("/runs/r-1/wait?limit=10m").ask()))
            .collect();
        eventually(async || (gateway.process.open_files() >= before + 20).then_some(())).await;
        for wait in waits {
            wait.abort();
        }
        eventually(async || (gateway.process.open_files() <= before).then_some(())).await;
        assert_eq!(gateway.json("/runs/r-1").await["reason"], Value::Null);
    });
}

/// covers: C4
#[test]
fn a_session_is_ended_across_owners_and_once() {
    run(async {
        let (upstream, gateway) = start().await;
        let mut streams = Vec::new();
        for (owner, id, session) in [
            ("one", "r-1", "s-1"),
            ("one", "r-2", "s-1"),
            ("two", "r-3", "s-1"),
            ("two", "r-4", "s-2"),
        ] {
            streams.push(gateway.open_stream(owner, id, session).await);
        }
        let ended = abort_session(&gateway, "s-1").await;
        assert_eq!(ended, json!({"runs": ["r-1", "r-2", "r-3"]}));
        assert_eq!(abort_session(&gateway, "s-1").await, json!({"runs": []}));
        assert_eq!(abort_session(&gateway, "s-9").await, json!({"runs": []}));
        upstream.until_open(1).await;
        assert_eq!(gateway.json("/runs/r-4").await["reason"], Value::Null);
    });
}

/// What comes too late leaves no trace.
/// covers: C4
#[test]
fn a_run_that_is_over_is_not_touched() {
    run(async {
        let (_upstream, gateway) = start().await;
        let _stream = gateway.open_stream("one", "r-1", "s-1").await;
        assert!(gateway.abort("r-1").await);
        assert!(!gateway.abort("r-1").await);
        let over = gateway.json("/runs/r-1").await;
        assert_eq!(over["also"], json!([]), "{over}");
    });
}
