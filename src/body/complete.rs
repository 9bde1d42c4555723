use http::{Method, StatusCode, header, response};
use http_body::Body;

/// How much of a body was announced. A server may stop polling a body once
/// that much was handed over, without ever asking for its end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Announced {
    /// Nothing follows the head: HEAD, 204, 304.
    Nothing,
    Bytes(u64),
    Unknown,
}

impl Announced {
    pub(crate) fn by<B: Body>(head: bool, parts: &response::Parts, body: &B) -> Self {
        let bodiless = matches!(
            parts.status,
            StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED
        );
        if head || bodiless {
            return Self::Nothing;
        }
        let exact = body.size_hint().exact();
        let announced = exact.or_else(|| {
            let length = parts.headers.get(header::CONTENT_LENGTH)?;
            length.to_str().ok()?.parse().ok()
        });
        announced.map_or(Self::Unknown, Self::Bytes)
    }

    pub(crate) const fn is_reached(self, passed: u64) -> bool {
        match self {
            Self::Nothing => true,
            Self::Bytes(bytes) => passed >= bytes,
            Self::Unknown => false,
        }
    }

    pub(crate) fn is_head(method: &Method) -> bool {
        // A successful CONNECT has no body either, but no model call is one.
        method == Method::HEAD
    }
}
