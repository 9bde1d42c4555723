use std::time::Duration;

use crate::run::{NodeKind, TerminalReason};

/// Why, where and when a node ended. Inherited unchanged by its descendants.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) reason: TerminalReason,
    /// The number of the node that was ended, not of one that inherited it.
    pub(crate) origin: u64,
    pub(crate) kind: NodeKind,
    /// Since the tree was opened.
    pub(crate) at: Duration,
    /// How long the node that was ended had lasted.
    pub(crate) lasted: Duration,
    /// The limit that fired, if it was one that is measured in time.
    pub(crate) limit: Option<Duration>,
}
