//! Tests of the exact error names, each by itself.

use super::{
    super::class::FailureClass::{
        self, Auth, Caller, Conflict, ContentFilter, ContextOverflow, ModelFault, ModelGone,
        NotReady, Overloaded, Quota, RateLimit, Region, RequestTimeout, Server, TooLarge,
    },
    NOW, class, judge,
};
use crate::dialect::StreamFailure;
use crate::failure::classifier::Failure;

/// The error names of each class, in the order of judging as far as the order matters.
const NAMES: &[(FailureClass, &[&str])] = &[
    (
        Quota,
        &[
            "insufficient_quota",
            "billing_error",
            "billing_hard_limit_reached",
            "billing_not_active",
        ],
    ),
    (
        RateLimit,
        &[
            "rate_limit_error",
            "rate_limit_exceeded",
            "ThrottlingException",
            "ServiceQuotaExceededException",
            "RESOURCE_EXHAUSTED",
        ],
    ),
    (
        Overloaded,
        &[
            "overloaded_error",
            "server_is_overloaded",
            "slow_down",
            "UNAVAILABLE",
        ],
    ),
    (
        NotReady,
        &["ModelNotReadyException", "MPAgreementBeingCreated"],
    ),
    (RequestTimeout, &["ModelTimeoutException"]),
    (
        ModelFault,
        &["ModelErrorException", "ModelStreamErrorException"],
    ),
    (Region, &["unsupported_country_region_territory"]),
    (
        Auth,
        &[
            "authentication_error",
            "invalid_api_key",
            "account_deactivated",
            "API_KEY_INVALID",
            "UnrecognizedClientException",
            "InvalidSignatureException",
            "ExpiredTokenException",
            "PERMISSION_DENIED",
        ],
    ),
    (
        ModelGone,
        &[
            "model_not_found",
            "permission_error",
            "model_decommissioned",
            "DeploymentNotFound",
            "ResourceNotFoundException",
            "AccessDeniedException",
        ],
    ),
    (
        ContextOverflow,
        &[
            "context_length_exceeded",
            "model_context_window_exceeded",
            "exceed_context_size_error",
        ],
    ),
    (TooLarge, &["request_too_large"]),
    (
        ContentFilter,
        &[
            "content_filter",
            "content_policy_violation",
            "image_content_policy_violation",
            "moderation_blocked",
            "invalid_prompt",
        ],
    ),
    (Conflict, &["conflict_error"]),
    (
        Server,
        &[
            "api_error",
            "server_error",
            "timeout_error",
            "vector_store_timeout",
            "InternalServerException",
            "DEADLINE_EXCEEDED",
            "CANCELLED",
        ],
    ),
    (
        Caller,
        &[
            "invalid_request_error",
            "not_found_error",
            "ValidationException",
            "string_above_max_length",
            "invalid_image",
            "invalid_image_format",
            "invalid_base64_image",
            "invalid_image_url",
            "invalid_image_mode",
            "image_too_large",
            "image_too_small",
            "image_parse_error",
            "image_file_too_large",
            "image_file_not_found",
            "unsupported_image_media_type",
            "empty_image_file",
            "failed_to_download_image",
        ],
    ),
];

#[test]
fn a_name_is_enough_with_a_status_that_tells_nothing_and_with_none() {
    for &(expected, names) in NAMES {
        for name in names {
            for key in ["type", "code", "status"] {
                let body = format!(r#"{{"error":{{"message":"x","{key}":"{name}"}}}}"#);
                assert_eq!(class(400, &body), Some(expected), "{body}");
                let event = Failure::of_stream(&StreamFailure::read(body.as_bytes()), NOW);
                assert_eq!(event.class, expected, "{body}");
            }
            let said = [("x-amzn-errortype", *name)];
            let failure = judge(400, &said, "{}").unwrap();
            assert_eq!(failure.class, expected, "{name} in the head");
        }
    }
}

#[test]
fn aws_names_come_with_a_namespace_an_address_and_either_first_letter() {
    let names = [
        "ThrottlingException",
        "throttlingException",
        "Throttling",
        "com.amazon.coral.availability#ThrottlingException",
        "ThrottlingException:http://internal.amazon.com/coral/com.amazon.bedrock/",
        "aws#throttlingException:x:y",
    ];
    for name in names {
        let body = format!(r#"{{"__type":"{name}","message":"x"}}"#);
        assert_eq!(class(400, &body), Some(RateLimit), "{name}");
        assert_eq!(
            judge(400, &[("x-amzn-errortype", name)], "{}")
                .unwrap()
                .class,
            RateLimit
        );
    }
    let others = ["", "T", "Exception", "#", ":", "throttling_exception", "ü"];
    for name in others {
        let body = format!(r#"{{"__type":"{name}","message":"x"}}"#);
        assert_eq!(class(400, &body), Some(Caller), "{name}");
    }
    let spelled = r#"{"error":{"type":"Insufficient_Quota","code":"INVALID_API_KEY"}}"#;
    assert_eq!(class(400, spelled), Some(Caller));
}

#[test]
fn the_member_of_an_aws_stream_is_the_name() {
    let event = |data: &str| Failure::of_stream(&StreamFailure::read(data.as_bytes()), NOW);
    let failure = event(r#"{"modelTimeoutException":{"message":"too slow"}}"#);
    assert_eq!(failure.class, RequestTimeout);
    assert_eq!(failure.message, "too slow");
    let failure = event(r#"{"modelTimeoutException":null,"error":{"code":"slow_down"}}"#);
    assert_eq!(failure.class, Overloaded);
}

#[test]
fn names_that_causes_share_go_before_the_status() {
    let body = |name: &str| format!(r#"{{"error":{{"message":"x","status":"{name}"}}}}"#);
    let cases = [
        ("RESOURCE_EXHAUSTED", RateLimit),
        ("PERMISSION_DENIED", Auth),
        ("AccessDenied", ModelGone),
        ("DEADLINE_EXCEEDED", Quota),
    ];
    for (name, expected) in cases {
        assert_eq!(class(402, &body(name)), Some(expected), "{name}");
    }
}
