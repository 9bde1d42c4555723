//! What the runs of an owner come to together, and whose they are.
//!
//! covers: D6

use reqwest::{Method, StatusCode};

use super::{is_capped, keyed, turn};
use crate::net::{Ask, CHAT, assert_no_secrets, chat, eventually, run};

/// The cap of the run is far, and each request is a run of its own.
#[test]
fn who_sends_a_new_id_or_none_meets_the_owners_cap() {
    run(async {
        for with_id in [true, false] {
            let (upstream, gateway) = keyed("turns_per_hour = 3\n[run]\nmax_turns = 30").await;
            for number in 0..6 {
                let id = with_id.then(|| format!("r-{number}"));
                let answer = turn(&gateway, "sk-one", id.as_deref()).await;
                match number {
                    0..3 => assert_eq!(answer.status, 200),
                    _ => is_capped(&answer),
                }
            }
            assert_eq!(upstream.count(), 3);
            for _ in 0..3 {
                assert_eq!(
                    turn(&gateway, "sk-two", None).await.status,
                    200,
                    "another owner"
                );
            }
            is_capped(&turn(&gateway, "sk-two", None).await);
        }
    });
}

/// Before anything was asked of an upstream.
#[test]
fn an_owner_has_so_many_runs_open() {
    run(async {
        let (upstream, gateway) = keyed("max_open_runs = 2\n").await;
        let stalls = |key: &str, id: Option<&str>| {
            let request = gateway.post(CHAT, chat("stall")).bearer_auth(key);
            match id {
                Some(id) => request.header("x-run-id", id),
                None => request,
            }
        };
        let one = stalls("sk-one", Some("r-1")).open().await;
        let two = stalls("sk-one", None).open().await;
        assert_eq!((one.status, two.status), (StatusCode::OK, StatusCode::OK));
        is_capped(&stalls("sk-one", Some("r-2")).ask().await);
        is_capped(&stalls("sk-one", None).ask().await);
        assert_eq!(
            turn(&gateway, "sk-one", Some("r-1")).await.status,
            200,
            "it is open"
        );
        assert_eq!(turn(&gateway, "sk-two", Some("r-1")).await.status, 200);
        assert_eq!(upstream.count(), 4);
        assert!(gateway.abort("r-1").await);
        let third = eventually(async || {
            let answer = stalls("sk-one", Some("r-3")).open().await;
            (answer.status == 200).then_some(answer)
        })
        .await;
        drop((one, two, third));
    });
}

#[test]
fn the_same_id_of_another_owner_is_another_run() {
    run(async {
        let (upstream, gateway) =
            keyed("[run]\nmax_turns = 1\n[control]\ntoken_env = \"TEST_TOKEN\"").await;
        assert_eq!(turn(&gateway, "sk-one", Some("r-1")).await.status, 200);
        is_capped(&turn(&gateway, "sk-one", Some("r-1")).await);
        assert_eq!(turn(&gateway, "sk-two", Some("r-1")).await.status, 200);
        is_capped(&turn(&gateway, "sk-two", Some("r-1")).await);
        assert_eq!(upstream.count(), 2);

        // Neither sees or ends a run by its key.
        for (method, path) in [
            (Method::GET, "/runs"),
            (Method::GET, "/runs/r-1"),
            (Method::GET, "/runs/r-1/wait"),
            (Method::POST, "/runs/r-1/abort"),
            (Method::POST, "/sessions/s-1/abort"),
        ] {
            let request = gateway.request(method, path).bearer_auth("sk-two");
            let answer = request.ask().await;
            assert_eq!(answer.status, 403, "{path}");
            assert!(!answer.text().contains("r-1"));
        }
    });
}

#[test]
fn what_the_cap_of_an_owner_refused_is_written_down_once_and_not_each_time() {
    run(async {
        let (_upstream, gateway) = keyed("turns_per_hour = 1").await;
        for key in ["sk-one", "sk-two"] {
            assert_eq!(turn(&gateway, key, Some("r-1")).await.status, 200);
            is_capped(&turn(&gateway, key, Some("r-1")).await);
            for _ in 0..5 {
                is_capped(&turn(&gateway, key, None).await);
            }
        }
        let records = eventually(async || {
            let records = gateway.records();
            (records.len() >= 2).then_some(records)
        })
        .await;
        assert_eq!(records.len(), 2, "{records:?}");
        let log = gateway.log();
        for (record, name) in records.iter().zip(["one", "two"]) {
            let owner = record["owner"].as_str().unwrap();
            let expected = serde_json::json!({
                "type": "harness_refused", "kind": "harness_refused", "reason": "turn_cap_reached",
                "cap": "turns_per_hour", "limit": 1, "refused": 1, "owner": owner,
                "run": "r-1", "session": null,
            });
            assert_eq!(*record, expected);
            assert!(log.contains(&format!("name={name} owner={owner}")), "{log}");
        }
        assert_no_secrets(&log, &["sk-one", "sk-two"]);
    });
}
