use std::error::Error;

use http_body_util::LengthLimitError;

use super::{
    class::FailureClass,
    errors::TransportError,
    errors::{IncompleteJson, NotAStream, Redirected},
};
use crate::{
    error::{InvalidRequest, RequestCut, chain},
    llm::dialect::Truncated,
};

/// The phrases by which TLS libraries report an untrusted certificate.
///
/// Each library has its own error type, which this crate cannot know.
const UNTRUSTED: [&str; 6] = [
    // rustls
    "invalid peer certificate",
    // OpenSSL
    "certificate verify failed",
    "self-signed certificate",
    "self signed certificate",
    // Apple and Windows
    "certificate was not trusted",
    "certificate chain was issued by an authority that is not trusted",
];

/// Classifies an error that came in place of an answer, or of an answer's rest.
pub(super) fn class_of(error: &(dyn Error + 'static)) -> FailureClass {
    // The caller's errors come before those of the transport, which may wrap them.
    let callers = |error: &(dyn Error + 'static)| {
        error.is::<RequestCut>() || error.is::<LengthLimitError>() || error.is::<InvalidRequest>()
    };
    if let Some(late) = chain(error).find_map(|error| error.downcast_ref::<NotAStream>()) {
        return late.class;
    }
    let is_cut =
        |error: &(dyn Error + 'static)| error.is::<Truncated>() || error.is::<IncompleteJson>();
    if chain(error).any(callers) {
        FailureClass::Caller
    } else if chain(error).any(|error| error.is::<Redirected>()) {
        FailureClass::Redirect
    } else if TransportError::is_in(error) {
        match chain(error).any(is_untrusted) {
            true => FailureClass::Certificate,
            false => FailureClass::Transport,
        }
    } else if chain(error).any(is_cut) {
        FailureClass::Transport
    } else {
        FailureClass::Server
    }
}

fn is_untrusted(error: &(dyn Error + 'static)) -> bool {
    let text = error.to_string();
    UNTRUSTED.iter().any(|phrase| text.contains(phrase))
}
