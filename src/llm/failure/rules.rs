use http::StatusCode;

use super::{
    class::{self, FailureClass},
    details::Details,
    error_codes, error_messages, reason,
};

/// All that is known of one failed answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said<'a> {
    /// `x-terminal-reason`; empty if there is none.
    pub(super) reason: &'a str,
    /// The answer's, or that which an error inside a 200 names.
    pub(super) status: Option<StatusCode>,
    /// `error.type`, `error.code` and what other providers have in their place;
    /// empty where they have nothing.
    pub(super) names: &'a [&'a str],
    pub(super) message: &'a str,
    pub(super) details: &'a Details,
    /// Its head says when to come again.
    pub(super) has_delay: bool,
    /// It is a page for people.
    pub(super) is_page: bool,
}

/// The one place where a failed answer gets its class.
///
/// Exact names go before prose, and both before the status, because proxies
/// keep an error's body more often than its status. Which of several classes
/// goes first is the order of [`error_codes::EXACT`] and [`error_messages::SENTENCES`].
pub(super) fn judge(said: Said<'_>) -> FailureClass {
    let class = reason::class_of(said.reason)
        .or_else(|| error_codes::find(error_codes::EXACT, said.names))
        .or_else(|| said.details.class(said.status))
        .or_else(|| {
            let status = said.status.or_else(|| error_codes::status_of(said.names));
            error_messages::find(status?, said.names, said.message)
        })
        .or_else(|| error_codes::find(error_codes::SHARED, said.names))
        .or_else(|| of_status(said))
        .or_else(|| error_codes::find(error_codes::BROAD, said.names))
        .or_else(|| said.names.iter().find_map(|name| reason::class_of(name)))
        .unwrap_or_else(|| class::fallback_class(said.status));
    match class {
        FailureClass::RateLimit if is_too_large(said) => FailureClass::RequestLimit,
        class => class,
    }
}

fn of_status(said: Said<'_>) -> Option<FailureClass> {
    match said.status.and_then(class::class_of_status) {
        // An empty purse does not say when it is full again.
        Some(FailureClass::Quota) if said.has_delay => Some(FailureClass::RateLimit),
        // A firewall's, which looks at where we are and at no credential.
        Some(_) if said.is_page && said.status == Some(StatusCode::FORBIDDEN) => {
            Some(FailureClass::Region)
        }
        class => class,
    }
}

/// Whether a rate limit is one that no waiting helps against.
fn is_too_large(said: Said<'_>) -> bool {
    said.status == Some(StatusCode::PAYLOAD_TOO_LARGE)
        || error_messages::has(said.message, "request too large for")
}
