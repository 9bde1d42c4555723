//! What the clients of each API read, in front of the embedded upstream.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::{
    net::{Answer, Ask, DIALECTS, Dialect, error_event, run},
    support::Gateway,
};

/// Asks the embedded gateway in all dialects at once.
async fn ask_each(model: &str, stream: bool, look: impl Fn(&Dialect, &Answer, &str)) {
    ask_all(&Gateway::embedded().await, model, stream, look).await;
}

/// The same of a model that no other stands in for.
async fn ask_alone(model: &str, stream: bool, look: impl Fn(&Dialect, &Answer, &str)) {
    ask_all(&Gateway::alone(model).await, model, stream, look).await;
}

async fn ask_all(
    gateway: &Gateway,
    model: &str,
    stream: bool,
    look: impl Fn(&Dialect, &Answer, &str),
) {
    let answers = DIALECTS.iter().map(async |dialect| {
        let answer = gateway
            .post(dialect.path, dialect.asks(model, stream))
            .ask()
            .await;
        println!("{}: {answer:?}", dialect.path);
        look(dialect, &answer, answer.text());
    });
    join_all(answers).await;
}

#[test]
fn a_whole_answer_has_the_dialects_shape() {
    run(ask_each("sim-healthy", false, |dialect, answer, text| {
        assert_eq!(answer.status, 200);
        assert!(answer.headers.contains_key("x-run-id"));
        assert_eq!(answer.headers.get("x-should-retry"), None);
        let body: Value = serde_json::from_str(text).unwrap();
        let (key, value) = dialect.object;
        assert_eq!(body[key], value);
    }));
}

#[test]
fn a_whole_stream_ends_with_the_dialects_terminator() {
    run(ask_each("sim-healthy", true, |dialect, answer, text| {
        assert_eq!(answer.status, 200);
        assert_eq!(answer.headers["cache-control"], "no-cache");
        assert_eq!(answer.headers["x-accel-buffering"], "no");
        let (_, last) = text.trim_end().rsplit_once("\n\n").unwrap();
        assert!(last.contains(dialect.terminator.trim_end()), "{last}");
        assert!(!text.contains("event: error"));
    }));
}

/// covers: T21
#[test]
fn a_model_without_a_head_is_answered_504() {
    run(ask_alone(
        "sim-stall-head",
        true,
        |dialect, answer, text| {
            assert_eq!(answer.status, 504);
            assert_eq!(answer.headers["content-type"], "application/json");
            assert_eq!(answer.headers["x-terminal-reason"], "step_timeout");
            assert_eq!(answer.headers["x-should-retry"], "false");
            assert!(answer.headers.contains_key("x-run-id"));
            assert_eq!(answer.headers.get("retry-after"), None);
            let (kind, message) = dialect.error(text);
            assert_eq!(kind, "step_timeout");
            assert!(message.contains("5s"), "it names the limit: {message}");
        },
    ));
}

#[test]
fn a_stream_that_stalls_ends_with_the_error_event() {
    run(ask_alone(
        "sim-stall-stream",
        true,
        |dialect, answer, text| {
            assert_eq!(answer.status, 200);
            let (before, data) = error_event(text);
            assert_eq!(data["code"], "step_timeout");
            assert_eq!(data["error"]["type"], "step_timeout");
            let run = answer.headers["x-run-id"].to_str().unwrap();
            assert_eq!(data["error"]["run_id"], run);
            assert!(!text.contains(dialect.terminator));
            let failed = before.contains("response.failed");
            assert_eq!(failed, dialect.path == "/v1/responses");
        },
    ));
}

#[test]
fn a_stream_that_is_cut_ends_with_the_error_event() {
    run(ask_alone("sim-cut", true, |dialect, answer, text| {
        assert_eq!(answer.status, 200);
        let (_, data) = error_event(text);
        assert_eq!(data["code"], "upstream_failed");
        assert!(!text.contains(dialect.terminator));
    }));
}

/// It was held back, so there is an answer to say so.
#[test]
fn a_whole_answer_that_is_cut_is_answered_502() {
    run(ask_alone("sim-cut", false, |dialect, answer, text| {
        assert_eq!(answer.status, 502);
        assert_eq!(answer.headers.get("x-terminal-reason"), None);
        assert_eq!(dialect.error(text).0, "upstream_failed");
    }));
}

#[test]
fn a_whole_answer_that_stalls_is_answered_504() {
    run(ask_alone(
        "sim-stall-stream",
        false,
        |dialect, answer, text| {
            assert_eq!(answer.status, 504);
            assert_eq!(answer.headers["x-should-retry"], "false");
            assert_eq!(dialect.error(text).0, "step_timeout");
        },
    ));
}

/// Not JSON either, though there is nothing to point at.
#[test]
fn an_empty_body_and_a_form_are_answered_400() {
    run(async {
        let gateway = Gateway::embedded().await;
        let form = "--b\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n--b--\r\n";
        for dialect in &DIALECTS {
            for (kind, body) in [
                ("application/json", ""),
                ("multipart/form-data; boundary=b", form),
            ] {
                let request = gateway.request(reqwest::Method::POST, dialect.path);
                let request = request.header("content-type", kind).body(body);
                let answer = request.ask().await;
                assert_eq!(answer.status, 400, "{kind}");
                let (kind, message) = dialect.error(answer.text());
                assert_eq!(kind, "invalid_request_error");
                assert!(message.contains("not JSON"), "{message}");
            }
        }
    });
}

#[test]
fn what_is_no_json_is_answered_400_with_line_and_column() {
    run(async {
        let gateway = Gateway::embedded().await;
        for dialect in &DIALECTS {
            let body = "{\n  \"model\": oops\n}";
            let answer = gateway.post(dialect.path, body).ask().await;
            assert_eq!(answer.status, 400);
            assert_eq!(answer.headers.get("x-terminal-reason"), None);
            assert!(answer.headers.contains_key("x-run-id"));
            let (kind, message) = dialect.error(answer.text());
            assert_eq!(kind, "invalid_request_error");
            assert!(message.contains("line 2 column 12"), "{message}");
        }
    });
}

#[test]
fn an_unusable_run_id_is_answered_400() {
    run(async {
        let gateway = Gateway::embedded().await;
        for dialect in &DIALECTS {
            for (name, value) in [
                ("x-run-id", "a b"),
                ("x-run-id", ""),
                ("x-session-id", "a/b?"),
            ] {
                let request = gateway.post(dialect.path, dialect.asks("sim-healthy", false));
                let answer = request.header(name, value).ask().await;
                assert_eq!(answer.status, 400, "{name}: {value:?}");
                let (kind, _) = dialect.error(answer.text());
                assert_eq!(kind, "invalid_request_error");
            }
        }
    });
}

/// Whose the request is, the gateway cannot know, and takes neither.
/// covers: D6
#[test]
fn two_different_run_ids_are_answered_400() {
    run(async {
        let gateway = Gateway::embedded().await;
        for dialect in &DIALECTS {
            for name in ["x-run-id", "x-session-id"] {
                let twice = |second: &str| {
                    let body = dialect.asks("sim-healthy", false);
                    let request = gateway.post(dialect.path, body).header(name, "one");
                    request.header(name, second).ask()
                };
                let answer = twice("two").await;
                assert_eq!(answer.status, 400, "{name}");
                let (kind, message) = dialect.error(answer.text());
                assert_eq!(kind, "invalid_request_error");
                assert!(message.contains(name), "{message}");
                assert_eq!(twice("one").await.status, 200, "the same {name} twice");
            }
        }
    });
}

/// No reason caused it, so it says nothing of one.
#[test]
fn an_upstreams_own_error_passes_as_it_is() {
    run(ask_alone("no-such-model", false, |_, answer, text| {
        assert_eq!(answer.status, 404);
        assert_eq!(answer.headers.get("x-terminal-reason"), None);
        assert_eq!(answer.headers.get("x-should-retry"), None);
        assert!(text.contains("no-such-model"), "{text}");
    }));
}

#[test]
fn the_other_operations_are_forwarded() {
    run(async {
        let gateway = Gateway::embedded().await;
        for (path, key) in [
            ("/v1/messages/count_tokens", "input_tokens"),
            ("/v1/embeddings", "data"),
        ] {
            let body = "{\"model\":\"sim-healthy\",\"input\":\"hi\",\"messages\":[]}";
            let answer = gateway.post(path, body).ask().await;
            assert_eq!(answer.status, 200, "{path}");
            let body = answer.json();
            assert!(body.get(key).is_some(), "{body}");
        }
    });
}

/// An SDK that asked for one encoding reads the other as something else.
/// covers: H1
#[test]
fn embeddings_come_in_the_encoding_that_was_asked_for() {
    run(async {
        let gateway = Gateway::embedded().await;
        for (format, vector) in [
            ("float", json!([0.5, -0.25, 0.125, 0.0])),
            ("base64", json!("AAAAPwAAgL4AAAA+AAAAAA==")),
        ] {
            let body = json!({"model": "sim-healthy", "input": "hi", "encoding_format": format});
            let answer = gateway.post("/v1/embeddings", body.to_string()).ask().await;
            let body = answer.json();
            assert_eq!(body["data"][0]["embedding"], vector, "{format}");
        }
    });
}

/// covers: H1
#[test]
fn models_and_health_are_told() {
    run(async {
        let gateway = Gateway::embedded().await;
        let models = gateway.json("/v1/models").await;
        let ids: Vec<_> = models["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|model| &model["id"])
            .collect();
        assert!(ids.contains(&&Value::from("sim-healthy")), "{ids:?}");
        let answer = gateway.get("/healthz").ask().await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.text(), "ok\n");
    });
}
