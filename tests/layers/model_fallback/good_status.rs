//! Errors under a good status, of which clients would take the answer for a good one.
//!
//! covers: F9

use tower_agent::llm::failure::FailureClass;

use super::{both, failed, models};
use crate::support::{Script, prompt};

#[tokio::test(start_paused = true)]
async fn the_last_candidates_error_goes_out_with_its_right_status() {
    let cases = [
        (r#"{"error":{"message":"no","code":418}}"#, 418),
        (r#"{"error":{"message":"no","code":"503"}}"#, 503),
        (r#"{"error":{"message":"no","code":"1234"}}"#, 502),
        (r#"{"error":"no"}"#, 502),
        (r#"{"error":{"message":"prompt is too long"}}"#, 400),
        (r#"[{"error":{"code":503,"status":"UNAVAILABLE"}}]"#, 503),
        (r#"{"error":{"status":"RESOURCE_EXHAUSTED"}}"#, 429),
        (r#"{"error":{"status":"PERMISSION_DENIED"}}"#, 403),
        (r#"{"error":{"type":"overloaded_error"}}"#, 529),
        (r#"{"error":{"code":"server_is_overloaded"}}"#, 503),
        (r#"{"error":{"type":"service_unavailable_error"}}"#, 503),
        (r#"{"error":{"type":"rate_limit_error"}}"#, 429),
        (r#"{"error":{"type":"authentication_error"}}"#, 401),
        (
            r#"{"type":"error","error":{"type":"not_found_error"}}"#,
            404,
        ),
        (r#"{"error":{"type":"invalid_request_error"}}"#, 400),
        (r#"{"error":{"type":"api_error"}}"#, 500),
        // Clients read these as what they are: a failed response, and a choice that failed.
        (
            r#"{"object":"response","status":"failed","error":{"code":"server_error"},"output":[]}"#,
            200,
        ),
        (r#"{"choices":[{"finish_reason":"error"}]}"#, 200),
    ];
    for (body, status) in cases {
        for (service, upstream) in both(&models(["a"])) {
            upstream.play("a", Script::answer(200, body));

            let outcome = service.ask(prompt("a")).await;

            assert_eq!(outcome.status, status, "{body}");
            assert_eq!(outcome.headers["x-served-model"], "a");
            assert_eq!(outcome.whole(), body);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_the_same_failure_as_under_200() {
    for (service, upstream) in both(&models(["a", "b"])) {
        upstream.play("a", Script::answer(200, r#"{"error":{"code":503}}"#));
        upstream.play("b", Script::answer(200, r#"{"error":{"code":429}}"#));

        let outcome = service.ask(prompt("a")).await;

        assert_eq!(outcome.status, 429);
        assert_eq!(upstream.models().last().unwrap(), "b");
        let run = outcome.run();
        assert_eq!(run.terminal_reason(), failed(FailureClass::RateLimit));
    }
}
