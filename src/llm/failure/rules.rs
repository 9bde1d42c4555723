use http::StatusCode;

use super::{
    class::{self, FailureClass},
    details::Details,
    error_codes, error_messages, reason,
};

/// The facts of one failed answer from which its class follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailureFacts<'a> {
    /// The value of the answer's `x-terminal-reason`; empty if there is none.
    pub(super) reason: &'a str,
    /// The status of the answer, or the one that an error under 200 names.
    pub(super) status: Option<StatusCode>,
    /// The names of the error: `error.type`, `error.code` and their equivalents of other
    /// providers; empty if missing.
    pub(super) names: &'a [&'a str],
    pub(super) message: &'a str,
    pub(super) details: &'a Details,
    /// Whether the answer's head asks for a delay.
    pub(super) has_delay: bool,
    /// Whether the answer's body is an HTML page.
    pub(super) is_page: bool,
}

/// Decides the class of a failed answer.
///
/// Exact names come before phrases, and both before the status, because proxies keep an
/// error's body more often than its status. The order among several classes is that of
/// [`error_codes::EXACT`] and [`error_messages::SENTENCES`].
pub(super) fn judge(facts: FailureFacts<'_>) -> FailureClass {
    let class = reason::class_of(facts.reason)
        .or_else(|| error_codes::find(error_codes::EXACT, facts.names))
        .or_else(|| facts.details.class(facts.status))
        .or_else(|| {
            let status = facts.status.or_else(|| error_codes::status_of(facts.names));
            error_messages::find(status?, facts.names, facts.message)
        })
        .or_else(|| error_codes::find(error_codes::SHARED, facts.names))
        .or_else(|| of_status(facts))
        .or_else(|| error_codes::find(error_codes::BROAD, facts.names))
        .or_else(|| facts.names.iter().find_map(|name| reason::class_of(name)))
        .unwrap_or_else(|| class::fallback_class(facts.status));
    match class {
        FailureClass::RateLimit if is_too_large(facts) => FailureClass::RequestLimit,
        class => class,
    }
}

fn of_status(facts: FailureFacts<'_>) -> Option<FailureClass> {
    match facts.status.and_then(class::class_of_status) {
        // A quota with a delay is a rate limit: an upstream asks for no delay if no
        // credit is left.
        Some(FailureClass::Quota) if facts.has_delay => Some(FailureClass::RateLimit),
        // A firewall sends its page under 403: it blocks by location, not by credential.
        Some(_) if facts.is_page && facts.status == Some(StatusCode::FORBIDDEN) => {
            Some(FailureClass::Region)
        }
        class => class,
    }
}

/// Whether the request exceeds a rate limit by itself, however long the caller waits.
fn is_too_large(facts: FailureFacts<'_>) -> bool {
    facts.status == Some(StatusCode::PAYLOAD_TOO_LARGE)
        || error_messages::has(facts.message, "request too large for")
}
