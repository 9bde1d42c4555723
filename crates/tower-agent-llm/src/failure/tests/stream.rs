//! Tests of errors inside a stream that began with 200.

use super::super::class::FailureClass::{
    Auth, Caller, ContentFilter, ContextOverflow, ModelGone, Overloaded, Quota, RateLimit,
    RequestLimit, Server,
};
use crate::dialect::StreamFailure;
use crate::failure::classifier::Failure;

fn judge(data: &str) -> Failure {
    Failure::of_stream(&StreamFailure::read(data.as_bytes()), super::NOW)
}

#[test]
fn events_are_judged_by_their_names() {
    let cases = [
        // Error events of OpenAI's chat, and of compatible APIs.
        (
            r#"{"error":{"message":"The server had an error","type":"server_error","param":null,"code":null}}"#,
            Server,
        ),
        (
            r#"{"error":{"message":"Rate limit reached","type":"requests","code":"rate_limit_exceeded"}}"#,
            RateLimit,
        ),
        (
            r#"{"error":{"message":"Request too large for gpt-4o on tokens per min (TPM): Limit 1, Requested 2.","type":"tokens","code":"rate_limit_exceeded"}}"#,
            RequestLimit,
        ),
        (
            r#"{"error":{"message":"x","type":"insufficient_quota","code":"insufficient_quota"}}"#,
            Quota,
        ),
        (
            r#"{"error":{"message":"x","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            ContextOverflow,
        ),
        (
            r#"{"error":{"message":"x","type":"invalid_request_error","code":null}}"#,
            Caller,
        ),
        (r#"{"error":"the model crashed"}"#, Server),
        // LM Studio states neither a status nor a name.
        (
            r#"{"error":{"message":"Input does not fit in context length."},"message":"x"}"#,
            ContextOverflow,
        ),
        (
            r#"{"error":{"message":"The model is overloaded."}}"#,
            Overloaded,
        ),
        (
            r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"code\":\"context_length_exceeded\"}"}},"choices":[]}"#,
            ContextOverflow,
        ),
        // What a provider quotes of the request, and what is too much for a rate, is none.
        (
            r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"[{\"msg\":\"Field required\",\"input\":\"why is my prompt is too long?\"}]"}}}"#,
            Caller,
        ),
        (
            r#"{"error":{"message":"Provider returned error","code":429,"metadata":{"raw":"prompt is too long"}}}"#,
            ContextOverflow,
        ),
        // Error events of the Responses API.
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"x"}}}"#,
            Server,
        ),
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"rate_limit_exceeded","message":"x"}}}"#,
            RateLimit,
        ),
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"server_is_overloaded","message":"x"}}}"#,
            Overloaded,
        ),
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"invalid_prompt","message":"x"}}}"#,
            ContentFilter,
        ),
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"image_content_policy_violation","message":"x"}}}"#,
            ContentFilter,
        ),
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"vector_store_timeout","message":"x"}}}"#,
            Server,
        ),
        (
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"invalid_image_url","message":"x"}}}"#,
            Caller,
        ),
        (
            r#"{"type":"error","code":"rate_limit_exceeded","message":"x","param":null,"sequence_number":3}"#,
            RateLimit,
        ),
        // Error events of Anthropic's API.
        (
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            Overloaded,
        ),
        (
            r#"{"type":"error","error":{"type":"api_error","message":"Internal server error"}}"#,
            Server,
        ),
        (
            r#"{"type":"error","error":{"type":"rate_limit_error","message":"x"}}"#,
            RateLimit,
        ),
        (
            r#"{"type":"error","error":{"type":"permission_error","message":"x"}}"#,
            ModelGone,
        ),
        (
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 3 tokens > 2 maximum"}}"#,
            ContextOverflow,
        ),
        // The error event by which another process's supervisor ended its run.
        (
            r#"{"type":"error","error":{"type":"step_timeout","code":"step_timeout","message":"x","run_id":"r"}}"#,
            Server,
        ),
        (
            r#"{"type":"error","error":{"type":"turn_cap_reached","code":"turn_cap_reached","message":"x","run_id":"r"}}"#,
            Caller,
        ),
        // Errors that are not known, or not readable.
        (r#"{"error":{"type":"new_error","message":"x"}}"#, Server),
        ("overloaded_error", Server),
        ("", Server),
    ];
    for (data, expected) in cases {
        assert_eq!(judge(data).class, expected, "{data}");
    }
}

#[test]
fn a_number_as_the_code_counts_as_a_status() {
    let cases = [
        (
            r#"{"error":{"code":429,"message":"x"}}"#,
            RateLimit,
            Some(429),
        ),
        (
            r#"{"error":{"code":"502","message":"x"}}"#,
            Server,
            Some(502),
        ),
        (
            r#"{"error":{"code":"529","message":"x"}}"#,
            Overloaded,
            Some(529),
        ),
        (r#"{"error":{"code":403,"message":"x"}}"#, Auth, Some(403)),
        (r#"{"error":{"code":400,"message":"x"}}"#, Caller, Some(400)),
        // Codes that are numbers of the provider's own, and numbers in prose.
        (r#"{"error":{"code":1234,"message":"x"}}"#, Server, None),
        (r#"{"error":{"code":200,"message":"x"}}"#, Server, None),
        (r#"{"error":{"code":4.29,"message":"x"}}"#, Server, None),
        (
            r#"{"error":{"code":"HTTP 429","message":"429 402"}}"#,
            Server,
            None,
        ),
    ];
    for (data, class, status) in cases {
        let failure = judge(data);
        assert_eq!(failure.class, class, "{data}");
        let found = failure.status.map(|status| status.as_u16());
        assert_eq!(found, status, "{data}");
    }
}

#[test]
fn the_words_are_the_upstream_s_and_there_is_no_head_to_read() {
    let failure = judge(r#"{"error":{"type":"overloaded_error","message":" Overloaded\n"}}"#);
    assert_eq!(failure.message, "Overloaded");
    assert_eq!(failure.retry_after, None);
    assert_eq!(failure.should_retry, None);
    assert!(failure.is_worth_repeating());
}
