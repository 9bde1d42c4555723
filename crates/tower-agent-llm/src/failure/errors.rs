//! The errors of failed upstreams and of calls that reached no upstream, and the classification
//! of errors.

use std::{error::Error, fmt, io::ErrorKind, time::Duration};

use http::StatusCode;
use http_body_util::LengthLimitError;

use super::class::FailureClass;
use crate::{
    dialect::Truncated,
    error::{BoxError, InvalidRequest, RequestCut, chain},
};

/// The error of a candidate with a base URL that answered 1xx or 3xx.
///
/// No layer follows the redirect, because the request, with its prompt, would go to another
/// server. The caller does not get the redirect either.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirected {
    /// The status that the upstream answered.
    pub status: StatusCode,
}

/// The error of an answer under a good status that is not a complete JSON document.
///
/// The answer is announced as JSON and was received to its end, but its body does not begin and
/// end as JSON, or leaves a bracket or a string open.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncompleteJson {
    /// The length of the answer, in bytes.
    pub length: u64,
}

impl Redirected {
    /// Creates the error of an answer with `status`, which is a 1xx or 3xx.
    #[must_use]
    pub const fn new(status: StatusCode) -> Self {
        Self { status }
    }
}

impl IncompleteJson {
    /// Creates the error of an answer of `length` bytes.
    #[must_use]
    pub const fn new(length: u64) -> Self {
        Self { length }
    }
}

impl fmt::Display for Redirected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.as_u16();
        write!(f, "upstream answered {status}, which is not followed")
    }
}

impl fmt::Display for IncompleteJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.length;
        write!(f, "answer of {length} bytes is no whole JSON document")
    }
}

impl Error for Redirected {}

impl Error for IncompleteJson {}

/// The error of an answer that is not an event stream, although the caller has the head of one.
///
/// A `TerminalResponseLayer` of `tower-agent` sent the head of an event stream
/// early, before the upstream answered.
#[derive(Debug)]
pub struct NotAStream {
    /// The status that the upstream answered.
    pub status: StatusCode,
    /// The failure class of the upstream's answer.
    pub class: FailureClass,
    /// The name that the upstream gave the error: its code, else its type; `None` if it gave none.
    pub code: Option<String>,
    /// The upstream's error message, at most 1 KiB; empty if there is none.
    pub message: String,
}

impl fmt::Display for NotAStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status;
        write!(f, "upstream answered {status} and no stream of events")?;
        match &*self.message {
            "" => Ok(()),
            message => write!(f, ": {message}"),
        }
    }
}

impl Error for NotAStream {}

/// The error of a request if every candidate that could serve it is cooling down.
///
/// No upstream was called for the request.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllCandidatesCoolingDown {
    /// The candidates that could serve the request, all of which are cooling down.
    pub candidates: Vec<ActiveCooldown>,
}

/// One candidate that is cooling down, in a [`AllCandidatesCoolingDown`].
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveCooldown {
    /// The label of the candidate that is cooling down.
    pub candidate: String,
    /// The time left until the candidate's cooldown ends.
    pub left: Duration,
    /// The class of the failure for which the candidate cools down.
    pub class: FailureClass,
}

impl ActiveCooldown {
    /// Creates the report of a cooldown of a candidate with this label.
    #[must_use]
    pub const fn new(candidate: String, left: Duration, class: FailureClass) -> Self {
        Self {
            candidate,
            left,
            class,
        }
    }
}

impl AllCandidatesCoolingDown {
    /// Creates the error of a request that only these candidates could serve.
    #[must_use]
    pub const fn new(candidates: Vec<ActiveCooldown>) -> Self {
        Self { candidates }
    }

    /// Finds the cooldowns in a call's error, or in one of its sources.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        chain(error).find_map(|error| error.downcast_ref())
    }

    /// The time left until the earliest end of a candidate's cooldown.
    #[must_use]
    pub fn soonest(&self) -> Duration {
        self.first().map(|first| first.left).unwrap_or_default()
    }

    /// The failure class of the candidate with the cooldown that ends first.
    pub(crate) fn class(&self) -> FailureClass {
        self.first().map_or(FailureClass::Server, |it| it.class)
    }

    fn first(&self) -> Option<&ActiveCooldown> {
        self.candidates.iter().min_by_key(|cooling| cooling.left)
    }
}

impl fmt::Display for AllCandidatesCoolingDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("every candidate is left alone after a failure: ")?;
        for (at, cooling) in self.candidates.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let ActiveCooldown {
                candidate, class, ..
            } = cooling;
            let seconds = seconds(cooling.left);
            // The name is quoted, so that it cannot look like another field of a log line.
            write!(f, "{comma}{candidate:?} for {seconds} s more ({class})")?;
        }
        Ok(())
    }
}

impl Error for AllCandidatesCoolingDown {}

/// Converts a duration to whole seconds, rounded up.
#[must_use]
pub const fn seconds(left: Duration) -> u64 {
    left.as_secs() + (left.subsec_nanos() > 0) as u64
}

/// The error of a call that could not reach its upstream, or that lost its connection.
///
/// Adapters wrap a client's connection errors in this type; a bare [`std::io::Error`]
/// counts as a transport error too.
#[derive(Debug)]
pub struct TransportError {
    source: BoxError,
}

impl TransportError {
    /// Wraps `source` as a failure of the transport.
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
        }
    }

    /// Whether `error` or one of its sources is a failure of the transport.
    #[must_use]
    pub fn is_in(error: &(dyn Error + 'static)) -> bool {
        chain(error).any(|error| error.is::<Self>() || error.is::<std::io::Error>())
    }

    /// Whether `error` or one of its sources is a refused connection, so that nothing was sent.
    #[must_use]
    pub fn is_refused(error: &(dyn Error + 'static)) -> bool {
        let refused = |error: &std::io::Error| error.kind() == ErrorKind::ConnectionRefused;
        chain(error).any(|error| error.downcast_ref().is_some_and(refused))
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upstream transport failed: {}", self.source)
    }
}

impl Error for TransportError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

/// The phrases by which TLS libraries report an untrusted certificate.
///
/// Each library has its own error type, which this crate cannot know.
const UNTRUSTED: [&str; 6] = [
    // rustls reports the next phrase.
    "invalid peer certificate",
    // OpenSSL reports the next three phrases.
    "certificate verify failed",
    "self-signed certificate",
    "self signed certificate",
    // Apple's TLS library reports the next phrase, and that of Windows the one after it.
    "certificate was not trusted",
    "certificate chain was issued by an authority that is not trusted",
];

/// Classifies the error of a call, before or after the head of the answer.
pub(super) fn class_of(error: &(dyn Error + 'static)) -> FailureClass {
    if let Some(late) = chain(error).find_map(|error| error.downcast_ref::<NotAStream>()) {
        return late.class;
    }
    let has = |is: fn(&(dyn Error + 'static)) -> bool| chain(error).any(is);
    // The caller's errors come before those of the transport, which may wrap them.
    if has(|it| it.is::<RequestCut>() || it.is::<LengthLimitError>() || it.is::<InvalidRequest>()) {
        FailureClass::Caller
    } else if has(|it| it.is::<Redirected>()) {
        FailureClass::Redirect
    } else if TransportError::is_in(error) {
        match says(error, &UNTRUSTED) {
            true => FailureClass::Certificate,
            false => FailureClass::Transport,
        }
    } else if has(|it| {
        it.downcast_ref()
            .is_some_and(|cut: &Truncated| cut.is_unframed)
    }) {
        FailureClass::ModelFault
    } else if has(|it| it.is::<Truncated>() || it.is::<IncompleteJson>()) {
        FailureClass::Transport
    } else {
        FailureClass::Server
    }
}

/// The phrases by which resolvers and clients report that a host's name cannot be resolved.
const UNRESOLVED: [&str; 3] = [
    // hyper's HTTP client reports an unresolved host by the phrase in the next line.
    "dns error",
    // The standard library reports the next phrase.
    "failed to lookup address information",
    // Windows reports the next phrase.
    "No such host is known",
];

/// Whether the host's name could not be resolved, so that the whole host is out of reach.
pub(super) fn is_unresolved(error: &(dyn Error + 'static)) -> bool {
    TransportError::is_in(error) && says(error, &UNRESOLVED)
}

/// Whether the text of `error`, or of one of its sources, contains one of the phrases.
fn says(error: &(dyn Error + 'static), phrases: &[&str]) -> bool {
    chain(error).any(|error| {
        let text = error.to_string();
        phrases.iter().any(|phrase| text.contains(phrase))
    })
}
