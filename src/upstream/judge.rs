use http::StatusCode;

use super::{FailureClass, names, status};

/// All that is known of one failed answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said<'a> {
    /// `x-terminal-reason`; empty if there is none.
    pub(super) reason: &'a str,
    /// The answer's, or that which an error inside a 200 names.
    pub(super) status: Option<StatusCode>,
    /// `error.type`.
    pub(super) kind: &'a str,
    /// `error.code`.
    pub(super) code: &'a str,
    pub(super) message: &'a str,
    /// It says when to come again.
    pub(super) has_delay: bool,
}

/// The one place where a failed answer gets its class.
///
/// Exact names go before prose, and both before the status, because proxies
/// keep an error's body more often than its status. Which of several classes
/// goes first is the order of [`names::EXACT`].
pub(super) fn judge(said: Said<'_>) -> FailureClass {
    let names = [said.kind, said.code];
    let class = names::of_reason(said.reason)
        .or_else(|| names::find(names::EXACT, names))
        .or_else(|| of_prose(said))
        .or_else(|| of_status(said))
        .or_else(|| names::find(names::BROAD, names))
        .or_else(|| names.into_iter().find_map(names::of_reason))
        .unwrap_or_else(|| status::otherwise(said.status));
    match class {
        FailureClass::RateLimit if is_too_large(said) => FailureClass::RequestLimit,
        class => class,
    }
}

/// Prose, only with the status and the name beside which a provider gives
/// nothing finer. Inside a stream there may be no status.
fn of_prose(said: Said<'_>) -> Option<FailureClass> {
    match (said.status.map(|status| status.as_u16()), said.kind) {
        (None | Some(400), "invalid_request_error") => {
            if has(said.message, "credit balance") {
                Some(FailureClass::Quota)
            } else if has(said.message, "prompt is too long") {
                Some(FailureClass::ContextOverflow)
            } else {
                None
            }
        }
        // A path that does not exist is called the same.
        (None | Some(404), "not_found_error") => ["model", "the model"]
            .into_iter()
            .any(|start| starts(said.message, start))
            .then_some(FailureClass::ModelGone),
        _ => None,
    }
}

fn of_status(said: Said<'_>) -> Option<FailureClass> {
    match said.status.and_then(status::telling) {
        // An empty purse does not say when it is full again.
        Some(FailureClass::Quota) if said.has_delay => Some(FailureClass::RateLimit),
        class => class,
    }
}

/// Whether a rate limit is one that no waiting helps against.
fn is_too_large(said: Said<'_>) -> bool {
    said.status == Some(StatusCode::PAYLOAD_TOO_LARGE) || has(said.message, "request too large for")
}

fn starts(text: &str, start: &str) -> bool {
    let head = text.as_bytes().get(..start.len());
    head.is_some_and(|head| head.eq_ignore_ascii_case(start.as_bytes()))
}

/// Whether `text` holds `phrase`, in any case.
fn has(text: &str, phrase: &str) -> bool {
    let mut windows = text.as_bytes().windows(phrase.len());
    windows.any(|window| window.eq_ignore_ascii_case(phrase.as_bytes()))
}
