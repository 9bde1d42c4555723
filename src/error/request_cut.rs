use std::{error::Error, fmt};

use super::BoxError;

/// The caller's request could not be read to its end: it went away, or broke
/// off, while it was still sending.
///
/// A service that reads a request's body wraps what goes wrong there in it, so
/// that it does not count as a failure of the upstream: the call ends as
/// [`ClientDisconnect`](crate::TerminalReason::ClientDisconnect).
///
/// ```
/// use tower_agent::error::RequestCut;
///
/// # async fn read(body: http_body_util::Full<bytes::Bytes>) -> Result<(), RequestCut> {
/// use http_body_util::BodyExt;
/// let body = body.collect().await.map_err(RequestCut::new)?;
/// # drop(body); Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RequestCut {
    source: BoxError,
}

impl RequestCut {
    /// Marks `source` as a failure to read the request.
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
        }
    }
}

impl fmt::Display for RequestCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request could not be read to its end: {}", self.source)
    }
}

impl Error for RequestCut {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
