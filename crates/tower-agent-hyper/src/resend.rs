//! Whether a request that failed may go out again without counting as an attempt.

use std::{error::Error, io, time::Duration};

use http::{HeaderMap, Method, Request, Uri};
use hyper_util::client::legacy;
use tokio::time::Instant;
use tower_agent::ReplayBody;

use crate::{connection::ConnectionRecord, request_body::OutgoingBody};

/// How soon after its call a request must fail so that it is sent again because its reused
/// connection died. The wait for the connection counts.
///
/// A server that crashes after minutes of work on a request has seen it: that is the failure of an
/// attempt, for the layers to judge.
pub const RESEND_WITHIN: Duration = Duration::from_secs(2);

/// A request that can be sent again.
pub(crate) struct Resend {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: ReplayBody,
}

impl Resend {
    /// Keeps a request; `None` if its body cannot be sent twice.
    pub(crate) fn of(request: &Request<OutgoingBody>) -> Option<Self> {
        let OutgoingBody::Replayable(body) = request.body() else {
            return None;
        };
        Some(Self {
            method: request.method().clone(),
            uri: request.uri().clone(),
            headers: request.headers().clone(),
            body: body.clone(),
        })
    }

    pub(crate) fn into_request(self) -> Request<OutgoingBody> {
        let mut request = Request::new(OutgoingBody::Replayable(self.body));
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.headers_mut() = self.headers;
        request
    }
}

/// Why a request that failed may go out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResendCause {
    /// The peer says that it did not process the request.
    Unprocessed,
    /// The reused connection died before anything was read on it after the request.
    Died,
}

impl ResendCause {
    /// The cause to send a request again that failed with `error`; `None` if it may have been
    /// processed.
    ///
    /// The request `began` at the call, and was not on its connection before `not_before`.
    pub(crate) fn of(error: &legacy::Error, began: Instant, not_before: Instant) -> Option<Self> {
        // Without a connection nothing was sent, and the next connection would fail the same way.
        let record = error.connect_info().and_then(ConnectionRecord::of)?;
        let http2 = http2_error(error);
        if http2.is_some_and(is_unprocessed) {
            return Some(Self::Unprocessed);
        }
        // Another error of the protocol is the upstream's answer to this request.
        let died = http2.is_none()
            && is_end(error)
            && !is_timeout(error)
            && record.is_proven()
            && !record.may_be_read_since(not_before)
            && began.elapsed() <= RESEND_WITHIN;
        died.then_some(Self::Died)
    }
}

/// Whether the connection can serve others although a request failed on it.
pub(crate) fn is_stream_only(error: &legacy::Error) -> bool {
    http2_error(error).is_some_and(h2::Error::is_reset)
}

/// Whether the peer says that it has not processed the request.
fn is_unprocessed(error: &h2::Error) -> bool {
    let is_refused = error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM);
    // A GOAWAY fails the streams above its last id only. Those below it go on, and at the end of
    // the connection they fail by an error of I/O.
    error.is_remote() && (is_refused || error.is_go_away())
}

/// Whether the connection ended, or failed by an error of I/O.
fn is_end(error: &legacy::Error) -> bool {
    chain(error).any(|error| {
        let has_ended = error
            .downcast_ref()
            .is_some_and(hyper::Error::is_incomplete_message);
        has_ended || error.is::<io::Error>()
    })
}

/// Whether a timer ended the connection. Its peer may be frozen, with the request in its kernel.
fn is_timeout(error: &legacy::Error) -> bool {
    let is_late = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
    chain(error).any(|error| {
        let is_hypers = error.downcast_ref().is_some_and(hyper::Error::is_timeout);
        is_hypers || error.downcast_ref().is_some_and(is_late)
    })
}

fn http2_error(error: &legacy::Error) -> Option<&h2::Error> {
    chain(error).find_map(|error| error.downcast_ref())
}

fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}
