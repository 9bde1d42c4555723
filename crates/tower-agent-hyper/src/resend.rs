//! Whether a request that failed may go out again without counting as an attempt.

use std::{error::Error, time::Duration};

use http::{HeaderMap, Method, Request, Uri};
use hyper_util::client::legacy;
use tower_agent::ReplayBody;

use crate::{connection::ConnectionRecord, request_body::OutgoingBody};

/// How soon after its start a request must fail so that it is sent again because its reused
/// connection died.
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

/// Whether a request is sent again that failed with `error`, so long after its start.
pub(crate) fn is_resent(error: &legacy::Error, elapsed: Duration) -> bool {
    // Without a connection nothing was sent, and the next connection would fail the same way.
    let Some(record) = error.connect_info().and_then(ConnectionRecord::of) else {
        return false;
    };
    let died = match http2_error(error) {
        Some(error) if is_unprocessed(error) => return true,
        // A reset stream is the upstream's answer to this request.
        Some(error) => error.is_io(),
        None => record.is_http2() || !record.has_answer_bytes(),
    };
    died && record.is_proven() && elapsed <= RESEND_WITHIN
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

fn http2_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a h2::Error> {
    std::iter::successors(Some(error), |error| (*error).source())
        .find_map(|error| error.downcast_ref())
}
