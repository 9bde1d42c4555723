//! The status that an error under a good status should have had.

use http::StatusCode;

use super::{class::Cooldown, class::FailureClass, class::RetrySame};
use crate::dialect::StreamFailure;

/// The statuses under which providers send errors of these names.
const NAMED: [(&str, u16); 25] = [
    ("overloaded_error", 529),
    ("rate_limit_error", 429),
    ("rate_limit_exceeded", 429),
    ("insufficient_quota", 429),
    ("authentication_error", 401),
    ("invalid_api_key", 401),
    ("billing_error", 402),
    ("permission_error", 403),
    ("not_found_error", 404),
    ("model_not_found", 404),
    ("invalid_request_error", 400),
    ("request_too_large", 413),
    ("api_error", 500),
    ("server_error", 500),
    ("server_is_overloaded", 503),
    ("service_unavailable_error", 503),
    ("timeout_error", 504),
    ("RESOURCE_EXHAUSTED", 429),
    ("UNAVAILABLE", 503),
    ("UNAUTHENTICATED", 401),
    ("PERMISSION_DENIED", 403),
    ("NOT_FOUND", 404),
    ("INVALID_ARGUMENT", 400),
    ("INTERNAL", 500),
    ("DEADLINE_EXCEEDED", 504),
];

/// The status of an error: the `stated` one, else that of its name. Without a known name it is 400
/// if the class blames the request, else 502.
pub(super) fn of(
    error: &StreamFailure,
    class: FailureClass,
    stated: Option<StatusCode>,
) -> StatusCode {
    let named = || {
        let names = [&*error.code, &*error.kind];
        let named = |name| NAMED.iter().find(|(known, _)| *known == name);
        let (_, status) = names.into_iter().find_map(named)?;
        StatusCode::from_u16(*status).ok()
    };
    let blames_request = class.retry() == RetrySame::No && class.cooldown() == Cooldown::No;
    let of_class = match blames_request {
        true => StatusCode::BAD_REQUEST,
        false => StatusCode::BAD_GATEWAY,
    };
    stated.or_else(named).unwrap_or(of_class)
}
