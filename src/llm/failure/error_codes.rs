use http::StatusCode;

use super::class::FailureClass;

type CodeRow = (FailureClass, &'static [&'static str]);

/// The exact error names that decide the failure class whatever the status.
///
/// The names are values of `error.type`, `error.code` and their equivalents, in the order
/// of judging: the first row that contains one wins. AWS's names are listed without their
/// `Exception`.
pub(super) const EXACT: &[CodeRow] = &[
    (
        FailureClass::Quota,
        &[
            "insufficient_quota",
            "billing_error",
            "billing_hard_limit_reached",
            "billing_not_active",
        ],
    ),
    (
        FailureClass::RateLimit,
        &[
            "rate_limit_error",
            "rate_limit_exceeded",
            "Throttling",
            "ServiceQuotaExceeded",
        ],
    ),
    (
        FailureClass::Overloaded,
        &[
            "overloaded_error",
            "server_is_overloaded",
            "slow_down",
            "UNAVAILABLE",
        ],
    ),
    (
        FailureClass::NotReady,
        &["ModelNotReady", "MPAgreementBeingCreated"],
    ),
    (FailureClass::RequestTimeout, &["ModelTimeout"]),
    (
        FailureClass::ModelFault,
        &["ModelError", "ModelStreamError"],
    ),
    (
        FailureClass::Region,
        &["unsupported_country_region_territory"],
    ),
    (
        FailureClass::Auth,
        &[
            "authentication_error",
            "invalid_api_key",
            "account_deactivated",
            "API_KEY_INVALID",
            "UnrecognizedClient",
            "InvalidSignature",
            "ExpiredToken",
        ],
    ),
    (
        FailureClass::ModelGone,
        &[
            "model_not_found",
            "permission_error",
            "model_decommissioned",
            "DeploymentNotFound",
            "ResourceNotFound",
        ],
    ),
    (
        FailureClass::ContextOverflow,
        &[
            "context_length_exceeded",
            "model_context_window_exceeded",
            "exceed_context_size_error",
        ],
    ),
    (FailureClass::TooLarge, &["request_too_large"]),
    (
        FailureClass::ContentFilter,
        &[
            "content_filter",
            "content_policy_violation",
            "image_content_policy_violation",
            "moderation_blocked",
            "invalid_prompt",
        ],
    ),
];

/// The error names that several causes share: a more exact phrase counts before them, the
/// status after them.
pub(super) const SHARED: &[CodeRow] = &[
    (FailureClass::RateLimit, &["RESOURCE_EXHAUSTED"]),
    (FailureClass::Auth, &["PERMISSION_DENIED"]),
    (FailureClass::ModelGone, &["AccessDenied"]),
];

/// The error names that only say which side is at fault: a more exact status counts
/// before them.
pub(super) const BROAD: &[CodeRow] = &[
    (FailureClass::Conflict, &["conflict_error"]),
    (
        FailureClass::Server,
        &[
            "api_error",
            "server_error",
            "timeout_error",
            "vector_store_timeout",
            "InternalServer",
            "DEADLINE_EXCEEDED",
            "CANCELLED",
        ],
    ),
    (
        FailureClass::Caller,
        &[
            "invalid_request_error",
            "not_found_error",
            "Validation",
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

/// Finds the failure class of the first row that contains one of `names`.
pub(super) fn find(rows: &[CodeRow], names: &[&str]) -> Option<FailureClass> {
    let row = rows
        .iter()
        .find(|(_, known)| known.iter().any(|known| is_among(known, names)));
    row.map(|&(class, _)| class)
}

/// Whether one of an error's `names` is the listed name `known`.
pub(super) fn is_among(known: &str, names: &[&str]) -> bool {
    names
        .iter()
        .any(|name| bare(name) == known || starts_lower(known, bare(name)))
}

/// The status that an error with one of these names has outside of a stream.
pub(super) fn status_of(names: &[&str]) -> Option<StatusCode> {
    if is_among("invalid_request_error", names) || is_among("Validation", names) {
        Some(StatusCode::BAD_REQUEST)
    } else if is_among("not_found_error", names) {
        Some(StatusCode::NOT_FOUND)
    } else {
        None
    }
}

/// Removes AWS's additions from an error name.
///
/// AWS adds a namespace before an error name or an address after it, and in most answers
/// the suffix `Exception`.
fn bare(name: &str) -> &str {
    let name = name.split_once('#').map_or(name, |(_, name)| name);
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    name.strip_suffix("Exception").unwrap_or(name)
}

/// Whether `name` is `known` with a lower-case first letter, as in AWS's streams.
fn starts_lower(known: &str, name: &str) -> bool {
    match (known.split_at_checked(1), name.split_at_checked(1)) {
        (Some((upper, rest)), Some((lower, same))) => {
            rest == same && upper.to_ascii_lowercase() == lower
        }
        _ => false,
    }
}
