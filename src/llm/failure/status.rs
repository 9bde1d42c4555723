use http::StatusCode;

use super::class::FailureClass;

/// Whether an answer with this status is a failure.
pub(super) fn is_failure(status: StatusCode) -> bool {
    status.as_u16() >= 400
}

/// The class that a status tells by itself.
///
/// A plain 400 or 404 tells nothing: an exact name may still say more.
pub(super) fn telling(status: StatusCode) -> Option<FailureClass> {
    match status.as_u16() {
        401 | 403 => Some(FailureClass::Auth),
        402 => Some(FailureClass::Quota),
        408 => Some(FailureClass::RequestTimeout),
        409 => Some(FailureClass::Conflict),
        410 => Some(FailureClass::ModelGone),
        413 => Some(FailureClass::TooLarge),
        424 => Some(FailureClass::ModelFault),
        429 => Some(FailureClass::RateLimit),
        // We are still here, so it was not us who went away.
        499 => Some(FailureClass::Server),
        529 => Some(FailureClass::Overloaded),
        500.. => Some(FailureClass::Server),
        _ => None,
    }
}

/// The class of a failure about which nothing else is known.
pub(super) fn otherwise(status: Option<StatusCode>) -> FailureClass {
    match status {
        Some(status) if status.is_client_error() => FailureClass::Caller,
        // An answer that was begun was asked for in a way that could be served.
        _ => FailureClass::Server,
    }
}
