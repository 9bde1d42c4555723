//! Tests of failures that the head of an answer reports.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    super::class::FailureClass::{Caller, Quota, RateLimit, Server},
    NOW, headers, judge,
};
use crate::dialect::StreamFailure;
use crate::failure::classifier::Failure;

#[test]
fn the_wish_of_the_upstream_is_read_exactly() {
    let cases = [
        ("true", Some(true)),
        ("false", Some(false)),
        ("no", None),
        ("", None),
    ];
    for (value, expected) in cases {
        let failure = judge(503, &[("x-should-retry", value)], "").unwrap();
        assert_eq!(failure.should_retry, expected, "{value}");
    }
    assert_eq!(judge(503, &[], "").unwrap().should_retry, None);
}

#[test]
fn the_delay_is_that_of_the_head_also_under_200() {
    let asked = [("retry-after", "7")];
    let error = r#"{"error":{"code":429,"message":"x"}}"#;
    for (status, body) in [(429, ""), (503, "{}"), (200, error)] {
        let failure = judge(status, &asked, body).unwrap();
        assert_eq!(failure.retry_after, Some(Duration::from_secs(7)));
    }
}

#[test]
fn a_402_with_a_delay_is_a_rate_limit_unless_it_has_a_name() {
    let asked = [("retry-after", "7")];
    assert_eq!(judge(402, &asked, "").unwrap().class, RateLimit);
    assert_eq!(judge(402, &[], "").unwrap().class, Quota);
    let named = r#"{"error":{"type":"billing_error","message":"x"}}"#;
    assert_eq!(judge(402, &asked, named).unwrap().class, Quota);
}

#[test]
fn a_reason_that_is_not_ours_is_the_upstream_s_failure_or_the_caller_s_fault() {
    let server = [
        "step_timeout",
        "slow",
        "max_turn_time",
        "timeout",
        "client_disconnect",
        "aborted",
        "shutdown",
        "upstream_failed",
    ];
    let caller = [
        "superseded",
        "turn_cap_reached",
        "token_cap_reached",
        "retry_budget_exceeded",
        "per_dispatch_errors_exceeded",
        "consecutive_errors",
        "loop_detected",
        "stuck",
        "idle_circuit_open",
    ];
    let body = r#"{"error":{"type":"insufficient_quota","message":"x"}}"#;
    for (names, expected) in [(&server[..], Server), (&caller[..], Caller)] {
        for &name in names {
            for status in [402, 422, 504] {
                let failure = judge(status, &[("x-terminal-reason", name)], body).unwrap();
                assert_eq!(failure.class, expected, "{status} {name}");
            }
            assert_eq!(judge(200, &[("x-terminal-reason", name)], "{}"), None);
        }
    }
    for name in ["too_dear", "", "completed", "Stuck"] {
        let failure = judge(402, &[("x-terminal-reason", name)], "").unwrap();
        assert_eq!(failure.class, Quota, "{name}");
    }
}

proptest! {
    #[test]
    fn any_answer_is_judged(
        status in 100u16..1000,
        body in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            "(\\{|\\}|\\[|\\]|\"|:|,|error|type|code|null|429|details|metadata|choices|stop_reason|refusal|__type|#|ü|<html){0,40}".prop_map(String::into_bytes),
        ],
    ) {
        let status = http::StatusCode::from_u16(status).unwrap();
        let html = headers(&[("retry-after", "1")]);
        let failure = Failure::of_answer(status, &html, &body, NOW);
        let _ = Failure::of_stream(&StreamFailure::read(&body), super::NOW);
        if status.as_u16() >= 400 {
            let failure = failure.unwrap();
            prop_assert_eq!(failure.status, Some(status));
            prop_assert!(failure.message.len() <= 1024);
        }
    }
}
