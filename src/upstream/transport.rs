use std::{error::Error, fmt};

use crate::{BoxError, error::chain};

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
