use std::{error::Error, fmt};

use crate::{error::BoxError, run::RunId};

/// A call failed for a reason that is not the end of its run; it says which
/// run that was, and has the failure as its source.
#[non_exhaustive]
#[derive(Debug)]
pub struct CallFailed {
    /// The run that the call belongs to.
    pub run: RunId,
    source: BoxError,
}

impl CallFailed {
    pub(super) const fn new(run: RunId, source: BoxError) -> Self {
        Self { run, source }
    }
}

impl fmt::Display for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call of run {} failed: {}", self.run, self.source)
    }
}

impl Error for CallFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
