//! Tests of answers under 200 in which the model, or one of the choices, stopped without
//! an answer.

use super::{
    super::class::{
        Concern,
        FailureClass::{
            self, ContentFilter, ContextOverflow, ModelFault, Overloaded, RateLimit, Region, Server,
        },
    },
    class, judge,
};
use crate::failure::classifier::Failure;

const STOPS: [(&str, FailureClass); 11] = [
    ("refusal", ContentFilter),
    ("content_filter", ContentFilter),
    ("SAFETY", ContentFilter),
    ("PROHIBITED_CONTENT", ContentFilter),
    ("BLOCKLIST", ContentFilter),
    ("RECITATION", ContentFilter),
    ("SPII", ContentFilter),
    ("IMAGE_SAFETY", ContentFilter),
    ("IMAGE_PROHIBITED_CONTENT", ContentFilter),
    ("IMAGE_RECITATION", ContentFilter),
    ("model_context_window_exceeded", ContextOverflow),
];

#[test]
fn a_reason_to_stop_where_another_model_might_not_is_a_failure() {
    for (reason, expected) in STOPS {
        assert_eq!(Failure::of_stop(reason), Some(Failure::new(expected)));
        let bodies = [
            format!(r#"{{"type":"message","content":[],"stop_reason":"{reason}"}}"#),
            format!(r#"{{"choices":[{{"finish_reason": "{reason}"}}]}}"#),
            format!(r#"{{"status":"incomplete","incomplete_details":{{"reason":"{reason}"}}}}"#),
            format!("{{\"candidates\":[{{\"finishReason\" :\n\"{reason}\"}}]}}"),
        ];
        for body in bodies {
            assert_eq!(class(200, &body), Some(expected), "{body}");
        }
    }
    for reason in [
        "end_turn", "stop", "STOP", "length", "tool_use", "Refusal", "",
    ] {
        assert_eq!(Failure::of_stop(reason), None);
    }
}

#[test]
fn a_reason_that_names_a_fault_concerns_this_answer_alone() {
    let reasons = [
        ("network_error", Server),
        ("abort", Server),
        ("insufficient_system_resource", Server),
        ("MALFORMED_FUNCTION_CALL", ModelFault),
        ("function_call_filter: MALFORMED_FUNCTION_CALL", ModelFault),
    ];
    for (reason, expected) in reasons {
        let bodies = [
            format!(r#"{{"choices":[{{"finish_reason":"{reason}"}}]}}"#),
            format!(r#"{{"candidates":[{{"finishReason":"{reason}"}}]}}"#),
            format!(r#"{{"type":"message","content":[],"stop_reason":"{reason}"}}"#),
        ];
        let whole = bodies.iter().map(|body| judge(200, &[], body));
        for failure in whole.chain([Failure::of_stop(reason)]) {
            let failure = failure.unwrap_or_else(|| panic!("{reason}"));
            assert_eq!(failure.class, expected);
            assert_eq!(failure.signal(), "stop reason");
            assert_eq!(failure.concern(), Concern::Request);
            assert!(failure.rest().is_none() && failure.suspicion().is_none());
        }
    }
    for healthy in ["abort_not", "MALFORMED", "function_call_filter: OTHER"] {
        assert_eq!(Failure::of_stop(healthy), None);
        let body = format!(r#"{{"choices":[{{"finish_reason":"{healthy}"}}]}}"#);
        assert_eq!(class(200, &body), None);
    }
}

#[test]
fn a_prompt_that_was_blocked_has_no_answer_whatever_the_reason() {
    for reason in ["SAFETY", "OTHER", "BLOCK_REASON_UNSPECIFIED"] {
        let body = format!(r#"{{"promptFeedback":{{"blockReason":"{reason}"}}}}"#);
        assert_eq!(class(200, &body), Some(ContentFilter), "{reason}");
    }
    assert_eq!(
        class(200, r#"{"promptFeedback":{"blockReason":null}}"#),
        None
    );
}

#[test]
fn an_answer_that_ended_well_in_any_choice_or_quotes_a_reason_is_healthy() {
    let healthy = [
        r#"{"choices":[{"finish_reason":"content_filter"},{"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"finish_reason":"stop"},{"finish_reason":"content_filter"}]}"#,
        r#"{"choices":[{"finish_reason":"content_filter"},{}]}"#,
        r#"{"choices":[{"message":{"refusal":null},"finish_reason":"stop"}]}"#,
        r#"{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}"#,
        r#"{"status":"completed","incomplete_details":null,"metadata":{"reason":"refusal"}}"#,
        r#"{"stop_reason":"refusal_not"}"#,
        r#"{"stop_reason":"end_turn","content":[{"input":{"stop_reason":"refusal"}}]}"#,
        r#"{"choices":[],"season":"refusal"}"#,
        r#"{"content":"\"stop_reason\":\"refusal\""}"#,
        r#"{"input":{"promptFeedback":{"blockReason":"SAFETY"}}}"#,
        r#"{"stop_reason":7,"choices":[{"finish_reason":"content_filter"}]}"#,
    ];
    for body in healthy {
        assert_eq!(class(200, body), None, "{body}");
    }
}

#[test]
fn an_answer_of_which_every_choice_failed_is_a_failure() {
    let cases = [
        (
            r#"{"choices":[{"error":{"code":429,"message":"x"}}]}"#,
            Some(RateLimit),
        ),
        (
            r#"{"choices":[{"finish_reason":"error"},{"error":{"code":503,"metadata":{"provider_name":"x"}}}]}"#,
            Some(Overloaded),
        ),
        (r#"{"choices":[{"finish_reason":"error"}]}"#, Some(Server)),
        (
            r#"{"choices":[{"error":{"code":429}},{"message":{"content":"hi"}}]}"#,
            None,
        ),
        (r#"{"choices":[{"error":null}]}"#, None),
        (r#"{"choices":[{"error":{"code":null}}]}"#, None),
        (r#"{"choices":[],"error":null}"#, None),
        (
            r#"{"choices":[{"content_filter_result":{"error":{"code":"content_filter_error"}}}]}"#,
            None,
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(class(200, body), expected, "{body}");
    }
}

#[test]
fn a_list_is_judged_by_what_it_begins_with() {
    let error = r#"{"error":{"code":503,"message":"x","status":"UNAVAILABLE"}}"#;
    let answer = r#"{"candidates":[{"content":{"parts":[{"text":"hi"}]}}]}"#;
    assert_eq!(class(200, &format!("[{error}]")), Some(Overloaded));
    assert_eq!(class(200, &format!("[{error},{answer}]")), Some(Overloaded));
    // The caller may have read the answer that came before the error.
    assert_eq!(class(200, &format!("[{answer},{error}]")), None);
    assert_eq!(class(200, "[\"error\"]"), None);
    assert_eq!(class(503, &format!("[{error}]")), Some(Overloaded));
    assert_eq!(class(503, "[]"), Some(Server));
}

#[test]
fn a_longer_body_is_not_read_but_a_page_is_one_at_any_length() {
    let pad = "x".repeat(64 * 1024);
    let body = |pad: &str| {
        format!(r#"{{"error":{{"code":"insufficient_quota","message":"y"}},"pad":"{pad}"}}"#)
    };
    assert_eq!(judge(500, &[], &body("")).unwrap().message, "y");
    assert_eq!(judge(500, &[], &body(&pad)).unwrap().class, Server);
    assert_eq!(class(200, &body(&pad)), None);
    let page = format!("<!doctype html>{pad}");
    assert_eq!(class(200, &page), Some(Server));
    assert_eq!(class(403, &page), Some(Region));
}
