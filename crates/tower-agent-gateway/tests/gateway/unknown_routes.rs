//! Paths that the gateway does not serve, and methods that a path does not take.
//!
//! covers: H1

use http::Method;
use serde_json::Value;

use crate::{
    net::{Answer, Ask, CHAT, Upstream, chat, run},
    support::{Config, Gateway},
};

/// The answer is an error in the shape of OpenAI's or Anthropic's API; the result is its message.
#[track_caller]
fn error(answer: &Answer, status: u16, is_anthropic: bool) -> String {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let body = answer.json();
    let kind = match status {
        404 => "not_found_error",
        426 => "upgrade_required",
        _ => "method_not_allowed",
    };
    assert_eq!(body["error"]["type"], kind, "{body}");
    let (shape, code) = match is_anthropic {
        true => (Value::from("error"), Value::Null),
        false => (Value::Null, Value::from(kind)),
    };
    assert_eq!((&body["type"], &body["error"]["code"]), (&shape, &code));
    body["error"]["message"].as_str().unwrap().to_owned()
}

/// An SDK whose base URL lacks `/v1`, has it twice, or has the operation in it.
#[test]
fn a_wrong_base_url_is_answered_with_the_route_that_was_meant() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        let below_v1 = "the base URL ends in /v1, right after the host";
        let doubled = "the client itself adds /v1 to the base URL";
        for (path, meant, why) in [
            ("/chat/completions", CHAT, below_v1),
            ("/chat/completions?key=secret", CHAT, below_v1),
            ("/responses", "/v1/responses", below_v1),
            ("/embeddings", "/v1/embeddings", below_v1),
            ("/models", "/v1/models", below_v1),
            ("/messages", "/v1/messages", below_v1),
            (
                "/messages/count_tokens",
                "/v1/messages/count_tokens",
                below_v1,
            ),
            ("/v1/v1/chat/completions", CHAT, doubled),
            ("/v1/v1/messages", "/v1/messages", doubled),
            ("/openai/v1/chat/completions", CHAT, below_v1),
            ("/v1/chat/completions/chat/completions", CHAT, below_v1),
            ("/v1/chat/completions/", CHAT, ""),
            ("/V1/Chat/Completions", CHAT, ""),
            ("//v1/chat/completions", CHAT, below_v1),
        ] {
            let answer = gateway.post(path, chat("ok")).ask().await;
            let message = error(&answer, 404, meant.starts_with("/v1/messages"));
            let hint = match why {
                "" => format!("did you mean {meant}?"),
                why => format!("did you mean {meant}: {why}?"),
            };
            assert!(message.ends_with(&hint), "{path}: {message}");
            assert!(!message.contains("secret"), "{message}");
        }
        assert_eq!(upstream.count(), 0);
    });
}

#[test]
fn an_unknown_path_is_an_error_in_json() {
    run(async {
        let (_upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        for (method, path) in [
            (Method::GET, "/favicon.ico"),
            (Method::POST, "/v1/completions"),
            (Method::POST, "/v1/audio/speech"),
            (Method::DELETE, "/nope"),
            (Method::POST, "/completions"),
        ] {
            let answer = gateway.request(method.clone(), path).ask().await;
            let message = error(&answer, 404, false);
            let start = format!("There is no route {method} {path}");
            assert!(message.starts_with(&start), "{message}");
            assert!(!message.contains("did you mean"), "{message}");
        }
        // The client of Anthropic's API says so in a header.
        let path = "/v1/complete";
        let request = gateway
            .post(path, "{}")
            .header("anthropic-version", "2023-06-01");
        error(&request.ask().await, 404, true);

        let long = format!("/{}", "a".repeat(5000));
        let message = error(&gateway.get(&long).ask().await, 404, false);
        assert!(message.len() < 500, "{message}");
    });
}

/// covers: T96
#[test]
fn an_unknown_path_is_no_way_around_a_check() {
    run(async {
        let upstream = Upstream::model().await;
        let keys = "[auth]\nkeys_env = \"TEST_KEYS\"";
        let config = Config::new(keys).candidates(&["m"], upstream.addr);
        let gateway = config.env("TEST_KEYS", "one:sk-one").start().await;
        for (path, origin, key, status) in [
            ("/chat/completions", None, None, 401),
            ("/chat/completions", None, Some("sk-one"), 404),
            ("/nope", Some("https://evil.example"), Some("sk-one"), 403),
            ("/", Some("https://evil.example"), None, 403),
            ("/", None, None, 200),
            ("/runs/r-1/abort", Some("https://evil.example"), None, 403),
        ] {
            let mut request = gateway.get(path);
            if let Some(origin) = origin {
                request = request.header("origin", origin);
            }
            if let Some(key) = key {
                request = request.bearer_auth(key);
            }
            assert_eq!(request.ask().await.status, status, "{path} {origin:?}");
        }
    });
}

#[test]
fn a_method_that_a_path_does_not_take_is_405_with_those_that_it_takes() {
    run(async {
        let (upstream, gateway) = Config::new("").start_with_model(&["m"]).await;
        for (method, path, allow) in [
            (Method::GET, CHAT, "POST"),
            // A GET that is an upgrade is taken.
            (Method::PUT, "/v1/responses", "POST,GET,HEAD"),
            (Method::GET, "/v1/responses", "POST"),
            (Method::GET, "/v1/messages", "POST"),
            (Method::POST, "/v1/models", "GET,HEAD"),
            (Method::POST, "/runs", "GET,HEAD"),
            (Method::GET, "/runs/r-1/abort", "POST"),
            (Method::DELETE, "/healthz", "GET,HEAD"),
            (Method::POST, "/", "GET,HEAD"),
        ] {
            let answer = gateway.request(method.clone(), path).ask().await;
            let message = error(&answer, 405, path == "/v1/messages");
            assert_eq!(answer.header("allow"), Some(allow), "{path}");
            assert!(message.contains(method.as_str()), "{message}");
            assert!(message.contains(path), "{message}");
        }
        assert_eq!(upstream.count(), 0);
    });
}

/// Codex opens the operation as a WebSocket, and sends a POST at once only at a 426.
/// covers: H1
#[test]
fn a_websocket_for_an_operation_is_answered_426_after_the_check_of_the_key() {
    run(async {
        let upstream = Upstream::model().await;
        let keys = "[server]\nwebsocket = false\n[auth]\nkeys_env = \"TEST_KEYS\"";
        let config = Config::new(keys).candidates(&["m"], upstream.addr);
        let gateway = config.env("TEST_KEYS", "one:sk-one").start().await;
        let ask = async |path: &str, key: &str, upgrade: &str| {
            let request = gateway.get(path).bearer_auth(key);
            let request = request
                .header("connection", "Upgrade")
                .header("upgrade", upgrade)
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
                .header("openai-beta", "responses_websockets=2026-02-06");
            request.ask().await
        };
        let refused = ask("/v1/responses", "sk-one", "websocket").await;
        let message = error(&refused, 426, false);
        assert!(message.ends_with("send a POST"), "{message}");
        assert_eq!(refused.header("allow"), Some("POST"));
        assert_eq!(refused.header("upgrade"), Some("HTTP/1.1"));
        assert_eq!(refused.header("connection"), Some("upgrade"));
        error(&ask(CHAT, "sk-one", "h2c, WebSocket").await, 426, false);
        assert_eq!(
            ask("/v1/responses", "sk-wrong", "websocket").await.status,
            401
        );
        error(&ask("/v1/responses", "sk-one", "h2c").await, 405, false);
        assert_eq!(ask("/v1/models", "sk-one", "websocket").await.status, 200);
        assert_eq!(upstream.count(), 0);
    });
}

/// Who opens the address in a browser, or asks with curl.
#[test]
fn the_root_says_what_answers() {
    run(async {
        let gateway = Gateway::embedded().await;
        let answer = gateway.get("/").ask().await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.header("content-type"),
            Some("text/plain; charset=utf-8")
        );
        let text = answer.text();
        assert_eq!(text.lines().count(), 1, "{text}");
        for word in ["tower-agent-gateway", "/v1", "docs/gateway.md"] {
            assert!(text.contains(word), "{word}: {text}");
        }
    });
}
