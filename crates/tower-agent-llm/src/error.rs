//! The error type of services, and the errors of a caller's own request.

use std::{error::Error, fmt};

/// Any error of a service.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Iterates over `error` and its chain of sources, outermost first.
#[doc(hidden)]
pub fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // An I/O error's `source` skips the error that the I/O error wraps.
        match error
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
        {
            Some(wrapped) => Some(wrapped as _),
            None => error.source(),
        }
    })
}

/// The error for a request that cannot be processed as it is.
///
/// The `TerminalResponseLayer` of `tower-agent` answers it with 400 unless told otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidRequest {
    message: String,
}

impl InvalidRequest {
    /// Creates the error; `message` is for the caller, and names the invalid part of the
    /// request.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
        }
    }
}

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for InvalidRequest {}

/// The error for a caller's request that could not be read to its end.
///
/// The caller disconnected, or aborted the upload. A service that reads a request's body
/// wraps a read error in this type, so that the read error does not count as a failure of
/// the upstream. In the layers of `tower-agent` the call ends as `ClientDisconnect`.
///
/// ```
/// use tower_agent_llm::error::RequestCut;
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
    /// Wraps `source` as a failure to read the caller's request.
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
