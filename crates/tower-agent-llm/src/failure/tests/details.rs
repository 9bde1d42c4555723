//! Tests of the details that providers report beside type, code and message.

use super::{
    super::class::FailureClass::{
        Auth, Caller, ContentFilter, Overloaded, Quota, RateLimit, Server,
    },
    class,
};

fn exhausted(violations: &str) -> String {
    format!(
        r#"{{"error":{{"code":429,"message":"x","status":"RESOURCE_EXHAUSTED","details":[{{"@type":"QuotaFailure","violations":{violations}}}]}}}}"#
    )
}

#[test]
fn a_quota_is_one_only_if_it_is_filled_up_once_a_day() {
    let cases = [
        (r#"[{"quotaId":"RequestsPerDayPerProject"}]"#, Quota),
        (r#"[{"quotaMetric":"x/requests_per_model_per_day"}]"#, Quota),
        (
            r#"[{"quotaId":"RequestsPerMinute"},{"quotaId":"RequestsPerDay"}]"#,
            Quota,
        ),
        (r#"[{"quotaId":"RequestsPerMinutePerProject"}]"#, RateLimit),
        (r#"[{"quotaId":7,"quotaMetric":null}]"#, RateLimit),
        (r#"[]"#, RateLimit),
        (r#"{"quotaId":"PerDay"}"#, RateLimit),
        ("7", RateLimit),
    ];
    for (violations, expected) in cases {
        let body = exhausted(violations);
        for body in [&body, &format!("[{body}]")] {
            assert_eq!(class(429, body), Some(expected), "{violations}");
        }
    }
}

#[test]
fn a_provider_behind_openrouter_is_overloaded_only_with_its_statuses() {
    let body = r#"{"error":{"code":1,"message":"x","metadata":{"provider_name":"P"}}}"#;
    let cases = [
        (502, Overloaded),
        (503, Overloaded),
        (500, Server),
        (504, Server),
        (429, RateLimit),
        (403, Auth),
        (400, Caller),
    ];
    for (status, expected) in cases {
        assert_eq!(class(status, body), Some(expected), "{status}");
    }
    let nameless = r#"{"error":{"code":502,"message":"x","metadata":{}}}"#;
    assert_eq!(class(502, nameless), Some(Server));
}

#[test]
fn moderation_is_told_by_its_reasons_or_by_what_was_flagged() {
    let body = |metadata: &str| format!(r#"{{"error":{{"message":"x","metadata":{metadata}}}}}"#);
    let cases = [
        (r#"{"reasons":["violence"]}"#, ContentFilter),
        (r#"{"flagged_input":"..."}"#, ContentFilter),
        (r#"{"reasons":null,"flagged_input":null}"#, Auth),
        ("[]", Auth),
    ];
    for (metadata, expected) in cases {
        assert_eq!(class(403, &body(metadata)), Some(expected), "{metadata}");
    }
}

#[test]
fn a_reason_of_google_counts_as_a_name() {
    let body = r#"{"error":{"code":400,"status":"INVALID_ARGUMENT","message":"x","details":[{"reason":"API_KEY_INVALID"},{"locale":"en"}]}}"#;
    assert_eq!(class(400, body), Some(Auth));
}
