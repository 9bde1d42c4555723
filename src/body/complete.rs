use http::{Response, StatusCode, header};
use http_body::Body;

/// How much of a body was announced, in bytes. A server may stop polling a body
/// once that much was handed over, without ever asking for its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Announced(u64);

impl Announced {
    pub(crate) const NOTHING: Self = Self(0);
    const UNKNOWN: Self = Self(u64::MAX);

    pub(crate) fn by<B: Body>(head: bool, answer: &Response<B>) -> Self {
        if !has_body(head, answer.status()) {
            return Self::NOTHING;
        }
        if let Some(exact) = answer.body().size_hint().exact() {
            return Self(exact);
        }
        let length = answer.headers().get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
        length.map_or(Self::UNKNOWN, Self)
    }

    #[inline]
    pub(crate) const fn is_reached(self, passed: u64) -> bool {
        passed >= self.0
    }
}

/// Whether an answer may have a body at all, however long it says that it is.
#[inline]
pub(crate) fn has_body(head: bool, status: StatusCode) -> bool {
    let bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    !head && !bodiless
}
