//! Names of headers that more than one module reads or writes.

use http::{HeaderName, header};

/// The header with the id of the run: read from callers' requests and from upstreams' answers,
/// set on answers, and sent to trusted candidates.
pub(crate) const X_RUN_ID: HeaderName = HeaderName::from_static("x-run-id");

/// The header that names the session to which a caller assigns its run.
pub(crate) const X_SESSION_ID: HeaderName = HeaderName::from_static("x-session-id");

/// The header with the number of the attempt: sent upstream, and set on the answer.
pub(crate) const X_ATTEMPT: HeaderName = HeaderName::from_static("x-attempt");

/// The header of an answer with the wire name of a terminal reason.
///
/// This crate sets the header on error answers for every reason but `upstream_failed`, and reads
/// it from upstreams' answers.
pub(crate) const X_TERMINAL_REASON: HeaderName = HeaderName::from_static("x-terminal-reason");

/// The header of an answer that tells SDKs, as `true` or `false`, whether to retry.
///
/// SDKs read this header before the status. This crate also reads it from upstreams' answers.
pub(crate) const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The header in which a caller sends an API key to Anthropic's API.
pub(crate) const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The request headers that may hold a caller's credential.
///
/// By default the first one present, in this order, names the owner of the run.
pub(crate) static CREDENTIALS: [HeaderName; 4] = [
    header::AUTHORIZATION,
    X_API_KEY,
    // The next header carries an API key for Azure, and the one after it an API key for Google.
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
];
