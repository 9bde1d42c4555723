use std::{error::Error, fmt};

use crate::run::Terminated;

/// Why a tool gave no result.
#[non_exhaustive]
#[derive(Debug)]
pub enum ToolError<E> {
    /// The tool's own error. The run goes on.
    Failed(E),
    /// The tool was dropped: its own window passed (then `kind` is
    /// [`NodeKind::Tool`](crate::NodeKind::Tool)), or something above it ended.
    Terminated(Box<Terminated>),
}

impl<E: fmt::Display> fmt::Display for ToolError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "tool failed: {error}"),
            Self::Terminated(terminated) => write!(f, "tool was stopped: {terminated}"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> Error for ToolError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Failed(_) => None,
            Self::Terminated(terminated) => Some(&**terminated),
        }
    }
}
