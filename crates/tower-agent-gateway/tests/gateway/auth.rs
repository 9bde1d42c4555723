//! Keys of callers: whose calls are served, and whose runs they are.
//!
//! covers: D6

use crate::{
    net::{Ask, CHAT, DIALECTS, Raw, Upstream, assert_no_secrets, chat, error_event, run},
    support::{Config, Gateway},
};
use reqwest::Method;
use serde_json::{Value, json};

const AUTH: &str = "[auth]\nkeys_env = \"TEST_KEYS\"\n";

const KEYS: (&str, &str) = ("TEST_KEYS", "coder:sk-coder,reader:sk-reader");

/// One upstream, and a gateway that asks for keys.
async fn start() -> (Upstream, Gateway) {
    let (upstream, gateway) = Config::new(AUTH)
        .env(KEYS.0, KEYS.1)
        .start_with_model(&["m"])
        .await;
    (upstream, gateway)
}

/// covers: T101
#[test]
fn a_key_is_taken_from_any_of_the_headers_and_goes_no_further() {
    run(async {
        let (upstream, gateway) = start().await;
        for (name, value) in [
            ("authorization", "Bearer sk-coder"),
            ("authorization", "bearer sk-coder"),
            ("x-api-key", "sk-coder"),
            ("api-key", "sk-coder"),
        ] {
            let request = gateway.post(CHAT, chat("ok")).header(name, value);
            assert_eq!(request.ask().await.status, 200, "{name}");
        }
        // Whatever else is there.
        let request = gateway.post(CHAT, chat("ok")).bearer_auth("none");
        let request = request.header("x-api-key", "sk-coder");
        assert_eq!(request.ask().await.status, 200);

        assert_eq!(upstream.count(), 5);
        for seen in upstream.calls() {
            assert_no_secrets(&format!("{seen:?}"), &["sk-coder", "none"]);
        }
        assert_no_secrets(&gateway.log(), &["sk-coder", "sk-reader"]);
    });
}

#[test]
fn without_a_known_key_a_call_is_401_in_its_dialect_and_nothing_is_opened() {
    run(async {
        let (upstream, gateway) = start().await;
        for dialect in &DIALECTS {
            for (name, value) in [
                ("x-other", "sk-coder"),
                ("authorization", "Bearer sk-codes"),
                ("authorization", "Bearer sk-coder2"),
                ("authorization", "Bearer sk-code"),
                ("authorization", "Bearer "),
                ("authorization", "sk-coder"),
                ("authorization", "Basic sk-coder"),
                ("authorization", "Bearer coder:sk-coder"),
                ("x-api-key", ""),
                ("x-api-key", "Bearer sk-coder"),
                ("x-goog-api-key", "sk-coder"),
            ] {
                let request = gateway.post(dialect.path, dialect.asks("m", false));
                let request = request.header(name, value).header("x-run-id", "r-1");
                let answer = request.ask().await;
                assert_eq!(answer.status, 401, "{name}: {value}");
                assert_eq!(answer.headers["x-should-retry"], "false");
                assert_eq!(answer.headers["content-type"], "application/json");
                assert!(!answer.headers.contains_key("x-run-id"));
                let body = answer.text();
                assert_eq!(dialect.error(body).0, "authentication_error");
                assert_no_secrets(body, &["sk-"]);
            }
        }
        assert_eq!(upstream.count(), 0);
        let runs = gateway.json("/runs").await;
        assert!(runs["runs"].as_array().unwrap().is_empty(), "{runs}");
    });
}

/// It is not waited for what nobody will read.
#[test]
fn a_wrong_key_is_answered_before_the_request_is_read() {
    run(async {
        let (_upstream, gateway) = start().await;
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: 1000\r\n\r\n{{");
        let answer = Raw::request(gateway.addr, &head).await.answer().await;
        assert_eq!(answer.status, 401);
    });
}

#[test]
fn the_list_of_models_needs_a_key_and_the_health_check_does_not() {
    run(async {
        let (_upstream, gateway) = start().await;
        let models = || gateway.get("/v1/models");
        assert_eq!(models().ask().await.status, 401);
        let known = models().header("x-api-key", "sk-reader");
        assert_eq!(known.ask().await.status, 200);
        let health = gateway.get("/healthz");
        assert_eq!(health.ask().await.status, 200);
    });
}

/// Whatever header a key comes in, it is one owner; another key is another.
/// covers: C4
#[test]
fn a_run_is_that_of_the_keys_name() {
    run(async {
        let (upstream, gateway) = start().await;
        let call = |name: &str, value: &str| {
            let request = gateway.post(CHAT, chat("ok")).header(name, value);
            request.header("x-run-id", "r-1").ask()
        };
        let bearer = call("authorization", "Bearer sk-coder");
        assert_eq!(bearer.await.status, 200);
        assert_eq!(gateway.json("/runs/r-1").await["run"], "r-1");
        assert!(gateway.abort("r-1").await);
        // It is over for its owner, in each header, and unknown to another.
        for (name, value, status) in [
            ("x-api-key", "sk-coder", 499),
            ("api-key", "sk-coder", 499),
            ("authorization", "Bearer sk-coder", 499),
            ("authorization", "Bearer sk-reader", 200),
        ] {
            let answer = call(name, value).await;
            assert_eq!(answer.status, status, "{name}: {value}");
        }
        let runs: Value = gateway.json("/runs/r-1").await;
        assert_eq!(runs["runs"].as_array().unwrap().len(), 2, "{runs}");
        assert_eq!(upstream.count(), 2);
    });
}

/// While one is replaced by the other.
#[test]
fn two_keys_of_one_name_are_one_owner() {
    run(async {
        let config = Config::new(AUTH).env("TEST_KEYS", "coder:sk-old,coder:sk-new");
        let (_upstream, gateway) = config.start_with_model(&["m"]).await;
        for key in ["sk-old", "sk-new"] {
            let request = gateway.post(CHAT, chat("ok")).header("x-run-id", "r-1");
            let answer = request.bearer_auth(key).ask().await;
            assert_eq!(answer.status, 200, "{key}");
        }
        let runs = gateway.json("/runs").await;
        assert_eq!(runs["runs"].as_array().unwrap().len(), 1, "{runs}");
    });
}

/// Beside the operator's routes a caller has its own, in which other owners' runs do not exist.
/// covers: C4
#[test]
fn a_caller_shows_and_aborts_its_own_runs_alone() {
    run(async {
        let (upstream, gateway) = start().await;
        let stream = |key, id| {
            let request = gateway.post(CHAT, chat("stall")).bearer_auth(key);
            request
                .header("x-run-id", id)
                .header("x-session-id", "s-1")
                .open()
        };
        let mut of_coder = stream("sk-coder", "r-1").await;
        let mut of_reader = stream("sk-reader", "r-2").await;
        let ask = |method: Method, path, key| {
            let request = gateway.request(method, path).bearer_auth(key);
            request.ask()
        };
        for (method, path) in [
            (Method::GET, "/v1/runs/r-1"),
            (Method::POST, "/v1/runs/r-1/abort"),
            (Method::GET, "/v1/runs/unknown"),
            (Method::POST, "/v1/runs/unknown/abort"),
        ] {
            let answer = ask(method, path, "sk-reader").await;
            assert_eq!(answer.status, 404, "{path}");
            assert_eq!(answer.json()["error"]["code"], "run_not_found", "{path}");
        }
        let none = ask(Method::POST, "/v1/sessions/s-2/abort", "sk-reader").await;
        assert_eq!(
            (none.status.as_u16(), none.json()),
            (200, json!({ "runs": [] }))
        );
        for path in ["/v1/runs/r-1", "/v1/runs/r-2"] {
            let answer = ask(Method::GET, path, "sk-nobody").await;
            assert_eq!(answer.status, 401, "{path}");
        }

        let shown = ask(Method::GET, "/v1/runs/r-1", "sk-coder").await;
        assert_eq!(shown.json()["run"], "r-1");
        assert_eq!(shown.json()["reason"], Value::Null);
        let aborted = ask(Method::POST, "/v1/runs/r-1/abort", "sk-coder").await;
        assert_eq!(aborted.json(), json!({ "aborted": true }));
        assert_eq!(error_event(&of_coder.rest().await).1["code"], "aborted");
        let aborted = ask(Method::POST, "/v1/runs/r-1/abort", "sk-coder").await;
        assert_eq!(aborted.json(), json!({ "aborted": false }), "once");

        // The session has the same name for both owners.
        let ended = ask(Method::POST, "/v1/sessions/s-1/abort", "sk-coder").await;
        assert_eq!(ended.json(), json!({ "runs": [] }));
        let ended = ask(Method::POST, "/v1/sessions/s-1/abort", "sk-reader").await;
        assert_eq!(ended.json(), json!({ "runs": ["r-2"] }));
        assert_eq!(error_event(&of_reader.rest().await).1["code"], "aborted");
        upstream.until_open(0).await;
    });
}

/// Without keys every run would be everybody's.
#[test]
fn without_keys_callers_have_no_routes_of_runs() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let request = gateway.post(CHAT, chat("ok")).header("x-run-id", "r-1");
        assert_eq!(request.ask().await.status, 200);
        assert_eq!(gateway.get("/v1/runs/r-1").ask().await.status, 404);
        let abort = gateway.request(Method::POST, "/v1/runs/r-1/abort");
        assert_eq!(abort.ask().await.status, 404);
    });
}
