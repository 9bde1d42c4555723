//! Upstreams that quote their caller: no words of one caller may rest a candidate for another.
//!
//! covers: H15

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use proptest::prelude::*;
use serde_json::{Value, json};
use tower::{Layer, ServiceExt, service_fn};

use crate::{
    Candidate, Cooldowns, ModelFallbackLayer, body::ReplayBody, error::BoxError, llm::phrases,
};

/// What the first candidate answers.
#[derive(Clone, Debug)]
struct Answer {
    status: u16,
    content_type: &'static str,
    body: String,
}

/// Sends a request whose first candidate answers so, and returns the model that served it, if any.
async fn ask(cooldowns: &Cooldowns, key: &str, body: &Value, answer: &Answer) -> Option<String> {
    let answer = Arc::new(answer.clone());
    let upstream = service_fn(move |request: Request<ReplayBody>| {
        let answer = Arc::clone(&answer);
        async move {
            let body: Value = serde_json::from_slice(&request.body().gathered())?;
            let (status, kind, body) = match body["model"].as_str() {
                Some("a") => (answer.status, answer.content_type, answer.body.clone()),
                _ => {
                    let whole = json!({"choices": [{"message": {"content": "ok"}}]});
                    (200, "application/json", whole.to_string())
                }
            };
            let response = Response::builder()
                .status(status)
                .header("content-type", kind)
                .body(Full::new(Bytes::from(body)))?;
            Ok::<_, BoxError>(response)
        }
    });
    let candidates = ["a", "b"].map(|name| Candidate::new(name).credential(name));
    let layer = ModelFallbackLayer::new(candidates).cooldowns(cooldowns.clone());
    let mut request = Request::post("/v1/chat/completions")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {key}"));
    if let Some(value) = body["header"].as_str() {
        request = request.header("x-trace", value.as_bytes());
    }
    let request = request
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap();
    let answer = layer.layer(upstream).oneshot(request).await.ok()?;
    let is_served = answer.status() == StatusCode::OK;
    let model = answer.headers().get("x-served-model")?.to_str().unwrap();
    is_served.then(|| model.to_owned())
}

/// The requests in which a caller can have placed a text.
fn placed(text: &str) -> [Value; 6] {
    let chat =
        |content: &str| json!({"model": "a", "messages": [{"role": "user", "content": content}]});
    let mut of_role = chat("hi");
    of_role["messages"][0]["role"] = text.into();
    let mut of_tool = chat("hi");
    of_tool["tools"] = json!([{"type": "function", "function": {"name": text}}]);
    let mut of_enum = chat("hi");
    of_enum["response_format"] = json!({"type": text});
    let mut of_arguments = chat("hi");
    let arguments = json!({"query": text}).to_string();
    of_arguments["messages"][0]["tool_calls"] = json!([{"function": {"arguments": arguments}}]);
    let mut of_header = chat("hi");
    of_header["header"] = text.into();
    [
        chat(text),
        of_role,
        of_tool,
        of_enum,
        of_arguments,
        of_header,
    ]
}

/// The answers in which an upstream quotes a text: with its own status and name, which rest nobody.
fn quoted(text: &str) -> Vec<Answer> {
    let escaped = json!(text).to_string();
    let cut = &escaped[..escaped.len() - 1];
    let messages = [
        format!("Invalid value: {text}"),
        text.to_owned(),
        format!("Invalid value: {escaped}. Supported values are: 'user'"),
        format!("Invalid value: '{text}'"),
        format!("Unknown tool `{text}`"),
        format!("Could not parse {cut}"),
        format!("Could not parse {}", json!(escaped)),
        format!("Could not parse: {text}"),
        format!(
            "Bad request - {{'error': {{'message': '{}'}}}}",
            text.replace('\'', "")
        ),
    ];
    let mut answers = Vec::new();
    for message in messages {
        let error = json!({"error": {"message": message, "type": "invalid_request_error"}});
        for status in [400, 404, 422] {
            answers.push(Answer {
                status,
                content_type: "application/json",
                body: error.to_string(),
            });
        }
        answers.push(Answer {
            status: 200,
            content_type: "text/event-stream",
            body: format!("data: {error}\n\n"),
        });
        answers.push(Answer {
            status: 200,
            content_type: "application/json",
            body: error.to_string(),
        });
    }
    answers
}

/// Each phrase of the table, in each place of a request, in each kind of quotation: by one caller
/// with two prompts, and by two callers.
#[tokio::test(start_paused = true)]
async fn no_quotation_of_a_caller_rests_a_candidate_for_another() {
    let mut messages = 0;
    for phrase in phrases() {
        let cooldowns = Cooldowns::new();
        let embedded = json!({"error": {"message": phrase, "type": "billing_error"}});
        let texts = [format!("{phrase} the end"), embedded.to_string()];
        let pairs = texts
            .iter()
            .flat_map(|text| placed(text).map(|body| (text, body)));
        for (at, (text, body)) in pairs.enumerate() {
            let answers = quoted(text);
            // Each place meets some of the kinds, and all places together meet all of them.
            for answer in answers.iter().skip(at).step_by(12) {
                for (key, prompt) in [("one", "p"), ("one", "q"), ("two", "p")] {
                    let mut body = body.clone();
                    body["user"] = prompt.into();
                    ask(&cooldowns, key, &body, answer).await;
                    messages += 1;
                }
                assert_eq!(cooldowns.list(), [], "{phrase}: {answer:?}");
            }
        }
    }
    assert!(messages > 200, "{messages}");
}

const LOW: &str = "Your credit balance is too low to access the Anthropic API.";

fn refusal(message: &str) -> Answer {
    let error =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": message}});
    Answer {
        status: 400,
        content_type: "application/json",
        body: error.to_string(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_true_phrase_moves_the_call_of_a_caller_whose_prompt_has_it() {
    let cooldowns = Cooldowns::new();
    let [body, ..] = placed("What does \"credit balance is too low\" mean?");
    for key in ["one", "two", "three"] {
        let served = ask(&cooldowns, key, &body, &refusal(LOW)).await;
        assert_eq!(served.as_deref(), Some("b"));
    }
    assert_eq!(cooldowns.list(), []);
}

#[tokio::test(start_paused = true)]
async fn a_second_witness_confirms_a_phrase() {
    let prompt = |text: &str| placed(text)[0].clone();
    let rests = async |calls: &[(&str, &str, u64)]| {
        let cooldowns = Cooldowns::new();
        for (key, text, after) in calls {
            tokio::time::advance(std::time::Duration::from_secs(*after)).await;
            let message = if *text == "served" { "" } else { LOW };
            let answer = match message {
                "" => Answer {
                    status: 200,
                    content_type: "application/json",
                    body: json!({"choices": [{"message": {"content": "ok"}}]}).to_string(),
                },
                message => refusal(message),
            };
            ask(&cooldowns, key, &prompt(text), &answer).await;
        }
        !cooldowns.list().is_empty()
    };
    // Two owners, and two prompts of the only owner.
    assert!(rests(&[("one", "p", 0), ("two", "p", 59)]).await);
    assert!(rests(&[("one", "p", 0), ("one", "q", 59)]).await);
    // The same prompt again, a minute between them, or a success.
    assert!(!rests(&[("one", "p", 0), ("one", "p", 1)]).await);
    assert!(!rests(&[("one", "p", 0), ("two", "p", 61)]).await);
    assert!(!rests(&[("one", "p", 0), ("three", "served", 1), ("two", "p", 1)]).await);
    // Two prompts of one owner, where the last hour had two.
    assert!(!rests(&[("two", "served", 0), ("one", "p", 9), ("one", "q", 9)]).await);
    assert!(
        rests(&[
            ("two", "served", 0),
            ("one", "r", 3700),
            ("one", "p", 3700),
            ("one", "q", 9)
        ])
        .await
    );
}

/// The rests that two callers leave behind whose upstream answers so.
async fn rests_after(status: u16, error: &Value, prompt: &str) -> Vec<(String, String, u64)> {
    let cooldowns = Cooldowns::new();
    let answer = Answer {
        status,
        content_type: "application/json",
        body: error.to_string(),
    };
    for key in ["one", "two"] {
        let [body, ..] = placed(prompt);
        ask(&cooldowns, key, &body, &answer).await;
    }
    let list = cooldowns.list().into_iter();
    list.map(|it| (it.candidate, it.class.to_string(), it.left.as_secs()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// For any body of an error, a text that the request contains changes no rest of others.
    #[test]
    fn a_text_of_the_request_changes_no_rest(
        status in prop::sample::select(vec![400_u16, 401, 402, 403, 404, 408, 410, 413, 422, 429, 500, 501, 503, 529]),
        phrase in prop::sample::select(phrases().collect::<Vec<_>>()),
        kind in prop::sample::select(vec!["", "rate_limit_error", "permission_error", "insufficient_quota", "api_error", "UNAVAILABLE"]),
        before in "[a-z \"'`{}\\\\]{0,12}",
        after in "( try again in [1-9]{1,2} (seconds|hours)| resets at 2026-01-01T00:00:00Z| for a day)?[a-z \"'{}]{0,12}",
    ) {
        let text = format!("{before}{phrase}{after}");
        let error = |message: &str| json!({"error": {"message": message, "type": kind}});
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        let with_text = runtime.block_on(rests_after(status, &error(&text), &text));
        let without = runtime.block_on(rests_after(status, &error("x"), &text));
        prop_assert_eq!(with_text, without, "{} {}", status, text);
    }
}
