//! Candidates that have failed before, and sessions and runs that remember it.

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    net::{Ask, CHAT, DIALECTS, Upstream, asks, eventually, run},
    support::{Config, Gateway},
};

const COOLDOWN: &str = "[fallback]\ncooldown = true";

async fn served(gateway: &Gateway, headers: &[(&str, &str)], model: &str) -> String {
    let mut request = gateway.post(CHAT, asks(model, false));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = request.ask().await;
    assert_eq!(answer.status, 200);
    let served = answer.headers["x-served-model"].to_str().unwrap();
    served.to_owned()
}

#[test]
fn a_candidate_that_has_failed_is_not_asked_by_the_next_call() {
    run(async {
        for (cooldown, asked) in [
            (true, ["500", "ok", "ok"].as_slice()),
            (false, &["500", "ok", "500", "ok"]),
        ] {
            let config = format!("[fallback]\ncooldown = {cooldown}");
            let (upstream, gateway) = Config::new(config).start_with_model(&["500", "ok"]).await;

            for _ in 0..2 {
                assert_eq!(served(&gateway, &[], "500").await, "ok");
            }

            assert_eq!(upstream.models(), asked);
            // What is logged of a call comes before its end, and by another way.
            let log = eventually(async || {
                let log = gateway.log();
                (log.matches("call ended").count() == 2).then_some(log)
            });
            assert_eq!(
                log.await.matches("why=\"cooldown\"").count(),
                usize::from(cooldown)
            );
        }
    });
}

#[test]
fn a_sole_candidate_that_has_failed_is_an_error_that_says_until_when() {
    run(async {
        let each = DIALECTS.iter().map(async |dialect| {
            let (upstream, gateway) = Config::new(COOLDOWN).start_with_model(&["500"]).await;
            let ask = async || gateway.post(dialect.path, asks("500", false)).ask().await;

            assert_eq!(ask().await.status, 500);
            let answer = ask().await;

            assert_eq!(answer.status, 503);
            assert!(!answer.headers.contains_key("x-terminal-reason"));
            let after: u64 = answer.headers["retry-after"]
                .to_str()
                .unwrap()
                .parse()
                .unwrap();
            assert!((1..=30).contains(&after), "{after}");
            let text = answer.text();
            let body: Value = serde_json::from_str(text).unwrap();
            let message = body["error"]["message"].as_str().unwrap();
            assert!(
                message.contains(&format!("for {after} s more")),
                "{message}"
            );
            // Which account is in trouble is not for everybody.
            assert!(!message.contains("server"), "{message}");
            assert_eq!(upstream.count(), 1);
        });
        join_all(each).await;
    });
}

#[test]
fn a_session_stays_with_whom_it_was_served_by() {
    run(async {
        let sticky = "[fallback]\nsticky = true";
        let (upstream, gateway) = Config::new(sticky).start_with_model(&["500", "ok"]).await;

        let session = [("x-session-id", "one")];
        assert_eq!(served(&gateway, &session, "500").await, "ok");
        assert_eq!(served(&gateway, &session, "500").await, "ok");
        let other = [("x-session-id", "two")];
        assert_eq!(served(&gateway, &other, "500").await, "ok");

        assert_eq!(upstream.models(), ["500", "ok", "ok", "500", "ok"]);
    });
}

#[test]
fn a_run_of_which_nothing_is_heard_ends() {
    run(async {
        let upstream = Upstream::model().await;
        let limits = "[run]\nidle_breaker = 3\n[attempt]\nfirst_token_timeout = \"1s\"";
        let gateway = Config::new(limits)
            .candidate("silent", upstream.addr)
            .set("name = \"second\"")
            .candidate("silent", upstream.addr)
            .start()
            .await;
        let ask = async || {
            let request = gateway.post(CHAT, asks("silent", true));
            request.header("x-run-id", "r").ask().await
        };

        assert_eq!(ask().await.status, 504, "two were silent, each once");
        for calls in [3, 3] {
            let answer = ask().await;
            assert_eq!(answer.status, 422);
            assert_eq!(answer.headers["x-terminal-reason"], "idle_circuit_open");
            assert_eq!(upstream.count(), calls);
        }
    });
}

#[test]
fn a_run_goes_on_if_silence_is_to_fail_over() {
    run(async {
        let limits = "[run]\nidle_breaker = 1\nidle_fails_over = true\n[retry]\n\
                      [attempt]\nfirst_token_timeout = \"2s\"";
        let (upstream, gateway) = Config::new(limits)
            .start_with_model(&["silent", "ok"])
            .await;

        let answer = gateway.post(CHAT, asks("silent", true)).ask().await;

        assert_eq!(answer.headers["x-served-model"], "ok");
        assert_eq!(upstream.models(), ["silent", "ok"], "it is not asked again");
    });
}

#[test]
fn the_operator_lists_cooldowns_and_ends_them() {
    run(async {
        let (upstream, gateway) = Config::new(COOLDOWN).start_with_model(&["500", "ok"]).await;
        let list = async || {
            let answer = gateway.request(Method::GET, "/cooldowns").ask().await;
            let body: Value = serde_json::from_str(answer.text()).unwrap();
            body["cooldowns"].clone()
        };
        assert_eq!(list().await, json!([]));
        assert_eq!(served(&gateway, &[], "500").await, "ok");

        let listed = list().await;
        assert_eq!(listed[0]["candidate"], "500");
        assert_eq!(listed[0]["class"], "server");
        let left = listed[0]["left_ms"].as_u64().unwrap();
        assert!((1..=30_000).contains(&left), "{left}");

        for cleared in [1, 0] {
            let clear = gateway.request(Method::POST, "/cooldowns/500/clear");
            assert_eq!(
                clear.ask().await.text(),
                format!("{{\"cleared\":{cleared}}}")
            );
        }
        assert_eq!(list().await, json!([]));
        assert_eq!(served(&gateway, &[], "500").await, "ok");
        assert_eq!(upstream.models(), ["500", "ok", "500", "ok"]);
    });
}
