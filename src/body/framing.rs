//! How a message frames its body: the length that it announces, and the headers that state it.

use http::{HeaderMap, Response, StatusCode, Version, header};
use http_body::Body;

/// The announced length of a body, in bytes.
///
/// A server may stop polling a body after that many bytes, without a poll for its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnnouncedLength(u64);

impl AnnouncedLength {
    pub(crate) const NOTHING: Self = Self(0);
    const UNKNOWN: Self = Self(u64::MAX);

    pub(crate) fn of_response<B: Body>(head: bool, answer: &Response<B>) -> Self {
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

/// Reads the body's length, as the `content-length` of a head announces it.
///
/// The length is `None` if there is no `content-length`, more than one, one that is not a plain
/// number or does not fit in 64 bits, or one beside a `transfer-encoding`, which overrides it (RFC
/// 9112, 6.3).
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(header::CONTENT_LENGTH).iter();
    let (Some(only), None) = (values.next(), values.next()) else {
        return None;
    };
    let is_plain = only.as_bytes().iter().all(u8::is_ascii_digit);
    if !is_plain || headers.contains_key(header::TRANSFER_ENCODING) {
        return None;
    }
    only.to_str().ok()?.parse().ok()
}

/// Removes a `transfer-encoding` of an answer, and with it any `content-length`.
///
/// Both frame the body on the upstream's connection, and an adapter of a client calls this before
/// it hands the answer on.
///
/// A `content-length` beside a `transfer-encoding` is not the length of the body. A server that
/// sent that length with a longer body would let the upstream inject responses into the caller's
/// connection.
pub fn unframe(headers: &mut HeaderMap) {
    if headers.remove(header::TRANSFER_ENCODING).is_some() {
        headers.remove(header::CONTENT_LENGTH);
    }
}

/// Removes from an answer what is of the connection that it came on.
///
/// An adapter of a client calls this before it hands the answer on: the version becomes HTTP/1.1,
/// the headers lose what [`unframe`] removes, and the extensions are cleared. A client leaves its
/// own in them, such as a reason phrase, which a server of the answer sends to its caller, or the
/// upstream's address.
pub fn detach<B>(answer: &mut Response<B>) {
    *answer.version_mut() = Version::HTTP_11;
    unframe(answer.headers_mut());
    answer.extensions_mut().clear();
}

/// Whether a response may have a body, by its status and by its request's method (`head`).
///
/// Whatever length it announces, a response to `HEAD`, a 204 and a 304 have none.
#[inline]
pub(crate) fn has_body(head: bool, status: StatusCode) -> bool {
    let bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    !head && !bodiless
}
