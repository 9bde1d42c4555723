//! What an agent may send to get around its cap.
//!
//! covers: D6

use super::{is_capped, keyed, turn};
use crate::{
    net::{Ask, CHAT, DIALECTS, Raw, chat, eventually, run},
    support::Gateway,
};
use reqwest::StatusCode;
use serde_json::{Value, json};

/// A request of which no library has a say.
async fn raw(gateway: &Gateway, head: &str) -> String {
    let body = chat("ok");
    let key = "authorization: Bearer sk-one\r\ncontent-type: application/json";
    let length = body.len();
    let request = format!("{head}{key}\r\ncontent-length: {length}\r\n\r\n{body}");
    Raw::request(gateway.addr, &request)
        .await
        .read_to_end()
        .await
}

/// What an agent may think of, once its run is over.
/// covers: D5
#[test]
fn nothing_that_is_sent_changes_the_cap() {
    run(async {
        let (upstream, gateway) = keyed("[run]\nmax_turns = 2").await;
        for _ in 0..2 {
            assert_eq!(turn(&gateway, "sk-one", Some("r-1")).await.status, 200);
        }
        is_capped(&turn(&gateway, "sk-one", Some("r-1")).await);

        // Headers.
        for (name, value) in [
            ("x-max-turns", "100"),
            ("x-run-max-turns", "100"),
            ("x-agent", "two"),
            ("x-session-id", "new"),
            ("x-request-id", "new"),
            ("x-stainless-retry-count", "3"),
            ("idempotency-key", "new"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-http-method-override", "GET"),
            ("x-original-url", "/v1/models"),
            ("x-turn", "1"),
            ("x-owner", "two"),
            ("api-key", "sk-unknown"),
            ("user-agent", "another"),
            ("authorization", "Bearer sk-two-not"),
            ("x-run-id", "r-2"),
        ] {
            let request = gateway.post(CHAT, chat("ok")).bearer_auth("sk-one");
            let request = request.header("x-run-id", "r-1").header(name, value);
            let answer = request.ask().await;
            let told = (answer.status, name);
            // Two ids are none that could be chosen among.
            let refused = [
                (StatusCode::UNPROCESSABLE_ENTITY, name),
                (StatusCode::BAD_REQUEST, "x-run-id"),
            ];
            assert!(refused.contains(&told), "{told:?}");
        }

        // Bodies, and other APIs.
        for dialect in &DIALECTS {
            for stream in [false, true] {
                let mut body: Value = serde_json::from_str(&dialect.asks("m", stream)).unwrap();
                for key in ["max_turns", "run_id", "metadata", "tools", "x-run-id"] {
                    body[key] = json!({"max_turns": 100, "run_id": "r-2"});
                }
                let request = gateway.post(dialect.path, body.to_string());
                let request = request.bearer_auth("sk-one").header("x-run-id", "r-1");
                is_capped(&request.ask().await);
            }
        }

        // The same route, written otherwise.
        for path in [
            "/v1/chat/completions?x=1",
            "/v1/chat/completions?run_id=r-2",
            "/v1/messages?beta=true",
        ] {
            let request = gateway.post(path, chat("ok")).bearer_auth("sk-one");
            let answer = request.header("x-run-id", "r-1").ask().await;
            is_capped(&answer);
        }
        for path in [
            "/v1/chat/completions/",
            "/V1/CHAT/COMPLETIONS",
            "/v1/Chat/completions",
            "//v1/chat/completions",
            "/v1/chat/completions/models",
            "/v1/chat/completions/embeddings",
            "/v1/embeddings/../chat/completions",
            "/v1/chat/completions%2fembeddings",
            "/v1/chat/completions;embeddings",
        ] {
            let head = format!("POST {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n");
            let answer = raw(&gateway, &head).await;
            assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        }

        // As the bytes of another client, in letters of any case.
        for (path, header) in [
            (CHAT, "X-RUN-ID: r-1"),
            (CHAT, "x-run-id:   r-1  "),
            ("http://127.0.0.1/v1/chat/completions", "x-run-id: r-1"),
        ] {
            let head = format!(
                "POST {path} HTTP/1.1\r\nHOST: 127.0.0.1\r\nconnection: close\r\n{header}\r\n"
            );
            let answer = raw(&gateway, &head).await;
            assert!(
                answer.starts_with("HTTP/1.1 422"),
                "{path} {header}: {answer}"
            );
        }

        // Another version of HTTP, another key of nobody.
        let second = reqwest::Client::builder()
            .no_proxy()
            .http2_prior_knowledge()
            .build()
            .unwrap();
        let request = second.post(format!("http://{}{CHAT}", gateway.addr));
        let request = request.bearer_auth("sk-one").header("x-run-id", "r-1");
        let request = request.header("content-type", "application/json");
        let answer = request.body(chat("ok")).ask().await;
        assert_eq!(answer.version, reqwest::Version::HTTP_2);
        is_capped(&answer);

        assert_eq!(upstream.count(), 2);
        let record = eventually(async || gateway.records().first().cloned()).await;
        assert_eq!(record["at_turn"], 2);
        assert_eq!(gateway.records().len(), 1);
    });
}

#[test]
fn an_aborted_run_stays_ended_with_all_its_turns_left() {
    run(async {
        let (upstream, gateway) = keyed("[run]\nmax_turns = 100").await;
        assert_eq!(turn(&gateway, "sk-one", Some("r-1")).await.status, 200);
        assert!(gateway.abort("r-1").await);
        for _ in 0..3 {
            let answer = turn(&gateway, "sk-one", Some("r-1")).await;
            assert_eq!(answer.status, 499);
            assert_eq!(answer.headers["x-should-retry"], "false");
        }
        assert_eq!(upstream.count(), 1);
        assert!(gateway.records().is_empty(), "its end was nobody's limit");
    });
}
