//! Tests of error answers that have the status of an error.

use super::{
    super::class::FailureClass::{
        self, Auth, Caller, Conflict, ContentFilter, ContextOverflow, ModelFault, ModelGone,
        NotReady, Overloaded, Quota, RateLimit, Region, RequestLimit, RequestTimeout, Server,
        TooLarge,
    },
    class, judge,
};

type Case = (u16, &'static str, FailureClass);

fn check(cases: &[Case]) {
    for &(status, body, expected) in cases {
        assert_eq!(class(status, body), Some(expected), "{status} {body}");
    }
}

#[test]
fn openai_s_codes() {
    check(&[
        (
            400,
            r#"{"error":{"message":"This model's maximum context length is 128000 tokens. However, your messages resulted in 140000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
            ContextOverflow,
        ),
        (
            400,
            r#"{"error":{"message":"Invalid 'messages[0].content': string too long. Expected a string with maximum length 1048576.","type":"invalid_request_error","param":"messages[0].content","code":"string_above_max_length"}}"#,
            Caller,
        ),
        (
            400,
            r#"{"error":{"message":"Your request was rejected as a result of our safety system.","type":"invalid_request_error","param":null,"code":"content_policy_violation"}}"#,
            ContentFilter,
        ),
        (
            400,
            r#"{"error":{"message":"Your request was rejected by the safety system.","type":"image_generation_user_error","param":null,"code":"moderation_blocked"}}"#,
            ContentFilter,
        ),
        (
            400,
            r#"{"error":{"message":"Invalid prompt: your prompt was flagged as potentially violating our usage policy.","type":"invalid_request_error","param":null,"code":"invalid_prompt"}}"#,
            ContentFilter,
        ),
        (
            400,
            r#"{"error":{"message":"The response was filtered due to the prompt triggering the content management policy.","type":null,"param":"prompt","code":"content_filter","status":400}}"#,
            ContentFilter,
        ),
        (
            400,
            r#"{"error":{"message":"Billing hard limit has been reached","type":"invalid_request_error","param":null,"code":"billing_hard_limit_reached"}}"#,
            Quota,
        ),
        (
            401,
            r#"{"error":{"message":"Incorrect API key provided: sk-1234.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#,
            Auth,
        ),
        (
            401,
            r#"{"error":{"message":"You didn't provide an API key.","type":"invalid_request_error","param":null,"code":null}}"#,
            Auth,
        ),
        (
            403,
            r#"{"error":{"code":"unsupported_country_region_territory","message":"Country, region, or territory not supported","param":null,"type":"request_forbidden"}}"#,
            Region,
        ),
        (
            404,
            r#"{"error":{"message":"The model `gpt-9` does not exist or you do not have access to it.","type":"invalid_request_error","param":null,"code":"model_not_found"}}"#,
            ModelGone,
        ),
        (
            404,
            r#"{"error":{"message":"Invalid URL (POST /v1/chat/completion)","type":"invalid_request_error","param":null,"code":null}}"#,
            Caller,
        ),
        (
            429,
            r#"{"error":{"message":"Rate limit reached for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Used 29000, Requested 2000. Please try again in 2s.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
            RateLimit,
        ),
        (
            429,
            r#"{"error":{"message":"Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 36278. The input or output tokens must be reduced in order to run successfully.","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
            RequestLimit,
        ),
        (
            429,
            r#"{"error":{"message":"Your account is not active, please check your billing details on our website.","type":"billing_not_active","param":null,"code":"billing_not_active"}}"#,
            Quota,
        ),
        (
            500,
            r#"{"error":{"message":"The server had an error while processing your request.","type":"server_error","param":null,"code":null}}"#,
            Server,
        ),
        (
            503,
            r#"{"error":{"message":"Our servers are currently overloaded. Please try again later.","type":"service_unavailable_error","code":"server_is_overloaded","param":null}}"#,
            Overloaded,
        ),
        (
            503,
            r#"{"error":{"message":"Slow down.","type":"server_error","code":"slow_down","param":null}}"#,
            Overloaded,
        ),
    ]);
}

#[test]
fn anthropic_s_types() {
    let cases = [
        (400, "invalid_request_error", "max_tokens: required", Caller),
        (
            400,
            "invalid_request_error",
            "Your credit balance is too low to access the Anthropic API.",
            Quota,
        ),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 209032 tokens > 200000 maximum",
            ContextOverflow,
        ),
        (401, "authentication_error", "invalid x-api-key", Auth),
        (402, "billing_error", "Payment required", Quota),
        (
            403,
            "permission_error",
            "Not allowed to use this model",
            ModelGone,
        ),
        (404, "not_found_error", "model: claude-9", ModelGone),
        (404, "not_found_error", "Not Found", Caller),
        (404, "not_found_error", "Not found: /v1/models/", Caller),
        (409, "conflict_error", "Conflict", Conflict),
        (413, "request_too_large", "Request too large", TooLarge),
        (429, "rate_limit_error", "Number of requests", RateLimit),
        (500, "api_error", "Internal server error", Server),
        (504, "timeout_error", "Request timed out", Server),
        (529, "overloaded_error", "Overloaded", Overloaded),
    ];
    for (status, kind, message, expected) in cases {
        let body = format!(
            r#"{{"type":"error","error":{{"type":"{kind}","message":"{message}"}},"request_id":"req_1"}}"#
        );
        assert_eq!(class(status, &body), Some(expected), "{status} {body}");
        let failure = judge(status, &[], &body).unwrap();
        assert_eq!(failure.message, message);
        assert_eq!(failure.status.unwrap().as_u16(), status);
    }
}

#[test]
fn quota_is_a_name_and_no_prose() {
    check(&[
        (
            429,
            r#"{"error":{"message":"You exceeded your current quota, please check your plan and billing details.","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#,
            Quota,
        ),
        (
            400,
            r#"{"error":{"message":"No.","type":"insufficient_quota","param":null,"code":null}}"#,
            Quota,
        ),
        (
            429,
            r#"{"error":{"message":"Quota exceeded for requests per minute. Check insufficient_quota and your credit balance.","type":"requests","param":null,"code":null}}"#,
            RateLimit,
        ),
        (429, "quota exceeded: insufficient_quota", RateLimit),
    ]);
}

#[test]
fn the_earlier_row_of_the_order_wins() {
    let body = |kind: &str, code: &str| {
        format!(r#"{{"error":{{"message":"x","type":"{kind}","code":"{code}"}}}}"#)
    };
    let order = [
        ("insufficient_quota", Quota),
        ("ServiceQuotaExceeded", RateLimit),
        ("overloaded_error", Overloaded),
        ("ModelNotReady", NotReady),
        ("ModelTimeout", RequestTimeout),
        ("ModelError", ModelFault),
        ("unsupported_country_region_territory", Region),
        ("invalid_api_key", Auth),
        ("model_not_found", ModelGone),
        ("context_length_exceeded", ContextOverflow),
        ("request_too_large", TooLarge),
        ("content_filter", ContentFilter),
        ("rate_limit_exceeded", RateLimit),
        ("PERMISSION_DENIED", Auth),
        ("AccessDenied", ModelGone),
        ("conflict_error", Conflict),
        ("server_error", Server),
        ("invalid_request_error", Caller),
    ];
    for (at, &(first, expected)) in order.iter().enumerate() {
        for &(later, _) in &order[at..] {
            for body in [body(first, later), body(later, first)] {
                assert_eq!(class(400, &body), Some(expected), "{body}");
            }
        }
    }
}

#[test]
fn a_name_that_tells_less_than_the_status_yields() {
    let body = r#"{"error":{"message":"x","type":"unknown_error","code":"invalid_request_error"}}"#;
    assert_eq!(class(402, body), Some(Quota));
    assert_eq!(class(408, body), Some(RequestTimeout));
    assert_eq!(class(429, body), Some(RateLimit));
    assert_eq!(class(500, body), Some(Server));
    assert_eq!(class(400, body), Some(Caller));
    let body = r#"{"error":{"message":"x","type":"server_error","code":null}}"#;
    assert_eq!(class(413, body), Some(TooLarge));
    assert_eq!(class(400, body), Some(Server));
}

#[test]
fn an_exact_name_goes_before_the_status() {
    let body = |code: &str| format!(r#"{{"error":{{"message":"x","code":"{code}"}}}}"#);
    let cases = [
        (500, "context_length_exceeded", ContextOverflow),
        (400, "overloaded_error", Overloaded),
        (413, "rate_limit_exceeded", RequestLimit),
    ];
    for (status, code, expected) in cases {
        assert_eq!(class(status, &body(code)), Some(expected), "{code}");
    }
}

#[test]
fn prose_counts_only_under_the_name_it_belongs_to() {
    let body = |kind: &str, message: &str| {
        format!(r#"{{"error":{{"type":"{kind}","message":"{message}"}}}}"#)
    };
    let long = "prompt is too long: 3 tokens > 2 maximum";
    let cases = [
        (400, body("invalid_request_error", "a 402 bolt"), Caller),
        (400, body("invalid_request_error", "got 529, 503"), Caller),
        (400, body("overloaded_error", long), Overloaded),
        (400, body("tool_error", "your credit balance"), Caller),
        (500, body("invalid_request_error", long), ContextOverflow),
        (400, body("not_found_error", "model: x"), Caller),
        (404, body("not_found_error", "the mode: x"), Caller),
        (
            404,
            body("not_found_error", "The model `x` is gone"),
            ModelGone,
        ),
        (400, body("tool_error", "Request too large for us"), Caller),
    ];
    for (status, body, expected) in cases {
        assert_eq!(class(status, &body), Some(expected), "{status} {body}");
    }
}

#[test]
fn a_number_in_the_body_of_an_error_does_not_replace_its_status() {
    let body = r#"{"error":{"message":"x","code":429}}"#;
    let failure = judge(400, &[], body).unwrap();
    assert_eq!(failure.class, Caller);
    assert_eq!(failure.status.unwrap().as_u16(), 400);
}

#[test]
fn a_page_under_an_error_is_judged_by_its_status_and_not_quoted() {
    let page = "<!DOCTYPE html><html><body>insufficient_quota</body></html>";
    for (status, expected) in [(404, Caller), (403, Region), (502, Server), (500, Server)] {
        let failure = judge(status, &[("content-type", "text/html")], page).unwrap();
        assert_eq!(failure.class, expected, "{status}");
        assert_eq!(failure.message, "");
    }
}

#[test]
fn the_words_are_found_under_any_of_their_keys() {
    let bodies = [
        r#"{"error":{"message":"x"}}"#,
        r#"{"error":"x"}"#,
        r#"[{"error":{"message":"x"}}]"#,
        r#"{"object":"error","message":"x","code":500}"#,
        r#"{"Message":"x"}"#,
        r#"{"detail":"x"}"#,
        r#"{"response":{"error":{"message":"x"}}}"#,
        r#"{"choices":[{"error":null},{"error":{"message":"x"}}]}"#,
        r#"{"internalServerException":{"message":"x"}}"#,
        "\"x\"",
        "x",
    ];
    for body in bodies {
        assert_eq!(judge(500, &[], body).unwrap().message, "x", "{body}");
    }
}

#[test]
fn messages_are_cut_between_characters() {
    let long = "ü".repeat(2000);
    let body = format!(r#"{{"error":{{"message":"x{long}"}}}}"#);
    for body in [body, format!("x{long}")] {
        let failure = judge(500, &[], &body).unwrap();
        assert_eq!(failure.message, format!("x{}", "ü".repeat(511)));
    }
}

#[test]
fn a_compressed_body_is_not_read() {
    let body = r#"{"error":{"message":"x","code":"insufficient_quota"}}"#;
    let plain = judge(429, &[("content-encoding", "identity")], body).unwrap();
    assert_eq!(plain.class, Quota);
    let failure = judge(429, &[("content-encoding", "gzip")], "\u{1f}\u{8b}").unwrap();
    assert_eq!((failure.class, &*failure.message), (RateLimit, ""));
}
