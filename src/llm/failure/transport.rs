use std::{error::Error, fmt, io::ErrorKind};

use crate::error::{BoxError, chain};

/// The upstream could not be reached, or the connection to it broke.
///
/// Adapters wrap a client's connection errors in it; a bare
/// [`std::io::Error`] counts as one too.
#[derive(Debug)]
pub struct TransportError {
    source: BoxError,
}

impl TransportError {
    /// Marks `source` as a failure of the transport.
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self {
            source: source.into(),
        }
    }

    /// Whether a failure of the transport stands in the chain of `error`.
    #[must_use]
    pub fn is_in(error: &(dyn Error + 'static)) -> bool {
        chain(error).any(|error| error.is::<Self>() || error.is::<std::io::Error>())
    }

    /// Whether the upstream refused the connection, so that nothing was sent.
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
