use http::{HeaderMap, Response, StatusCode, header};
use http_body::Body;

/// How much of a body was announced, in bytes. A server may stop polling a body
/// once that much was handed over, without ever asking for its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnnouncedLength(u64);

impl AnnouncedLength {
    pub(crate) const NOTHING: Self = Self(0);
    const UNKNOWN: Self = Self(u64::MAX);

    pub(crate) fn by<B: Body>(head: bool, answer: &Response<B>) -> Self {
        if !has_body(head, answer.status()) {
            return Self::NOTHING;
        }
        if let Some(exact) = answer.body().size_hint().exact() {
            return Self(exact);
        }
        content_length(answer.headers()).map_or(Self::UNKNOWN, Self)
    }

    #[inline]
    pub(crate) const fn is_reached(self, passed: u64) -> bool {
        passed >= self.0
    }
}

/// The length that a head announces; `None` without one, with several, with one
/// that is no plain number, and beside a `transfer-encoding`, which overrides it
/// (RFC 9112, 6.3).
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut said = headers.get_all(header::CONTENT_LENGTH).iter();
    let (Some(only), None) = (said.next(), said.next()) else {
        return None;
    };
    let is_plain = only.as_bytes().iter().all(u8::is_ascii_digit);
    if !is_plain || headers.contains_key(header::TRANSFER_ENCODING) {
        return None;
    }
    only.to_str().ok()?.parse().ok()
}

/// Removes the framing of the connection that an answer came on: the
/// `transfer-encoding`, and a length beside it, which is not the body's. A server
/// that wrote that length before the whole body would let the upstream write
/// further answers on the caller's connection.
pub(crate) fn unframe(headers: &mut HeaderMap) {
    if headers.remove(header::TRANSFER_ENCODING).is_some() {
        headers.remove(header::CONTENT_LENGTH);
    }
}

/// Whether an answer may have a body at all, however long it says that it is.
#[inline]
pub(crate) fn has_body(head: bool, status: StatusCode) -> bool {
    let bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    !head && !bodiless
}
