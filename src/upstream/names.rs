use super::FailureClass;

type Row = (FailureClass, &'static [&'static str]);

/// Exact values of `error.type` and `error.code` that settle the class whatever
/// the status, in the order of judging: the first row that holds one wins.
pub(super) const EXACT: &[Row] = &[
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
        &["rate_limit_error", "rate_limit_exceeded"],
    ),
    (
        FailureClass::Overloaded,
        &["overloaded_error", "server_is_overloaded", "slow_down"],
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
        ],
    ),
    (
        FailureClass::ModelGone,
        &[
            "model_not_found",
            "permission_error",
            "model_decommissioned",
            "DeploymentNotFound",
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

/// Names that only say whose fault it is: a status that tells more goes first.
pub(super) const BROAD: &[Row] = &[
    (FailureClass::Conflict, &["conflict_error"]),
    (
        FailureClass::Server,
        &[
            "api_error",
            "server_error",
            "timeout_error",
            "vector_store_timeout",
        ],
    ),
    (
        FailureClass::Caller,
        &[
            "invalid_request_error",
            "not_found_error",
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

/// The class of the first row that holds one of `names`.
pub(super) fn find(rows: &[Row], names: [&str; 2]) -> Option<FailureClass> {
    let row = rows
        .iter()
        .find(|(_, known)| names.iter().any(|name| known.contains(name)));
    row.map(|&(class, _)| class)
}

/// What a terminal reason of another supervisor, which is not trusted here,
/// amounts to.
///
/// Its clock or its caller ended its run, not ours; but a limit would stop the
/// same work again.
pub(super) fn of_reason(name: &str) -> Option<FailureClass> {
    match name {
        "step_timeout" | "max_turn_time" | "timeout" | "client_disconnect" | "aborted"
        | "shutdown" | "upstream_failed" => Some(FailureClass::Server),
        "superseded"
        | "turn_cap_reached"
        | "retry_budget_exceeded"
        | "per_dispatch_errors_exceeded"
        | "consecutive_errors"
        | "loop_detected"
        | "stuck"
        | "idle_circuit_open" => Some(FailureClass::Caller),
        _ => None,
    }
}
